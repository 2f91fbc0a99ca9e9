"""Imports point one way: kernels <- codecs <- collectives <- reducer <- handle <- ddp, fsdp."""

import ast
import subprocess
import sys
from pathlib import Path

import gradwire

ROOT = Path(gradwire.__file__).parent
LAYERS = [
    {"codec", "learning", "kernels", "turns"},
    {"codecs"},
    {"wire", "groups", "link", "parts", "parameters", "policy", "stats", "streams", "units"},
    {"agreement", "collectives", "lanes", "learner", "raw"},
    {"route", "failures"},
    {"reducer", "scatterer"},
    {"gatherer"},
    {"loss_scale", "plan", "state"},
    {"log"},
    {"handle"},
    {"ddp", "functional"},
    {"sharded_log", "sharded_plan", "sharded_state"},
    {"sharded"},
    {"comms"},
    {"fsdp"},
    {"attaching"},
]
"""Whatever is not named here is at the top, and may import everything."""


def imports(path):
    """Modules of gradwire and others that a file names in its imports, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "gradwire":
            yield from (f"gradwire.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def layer_of(name):
    return next((i for i, layer in enumerate(LAYERS) if name in layer), len(LAYERS))


def top_level(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        own = layer_of(top_level(path))
        for module in imports(path):
            if module.startswith("gradwire."):
                other = module.split(".")[1]
                assert layer_of(other) <= own, f"{path.name} imports {module}"


def test_codecs_and_kernels_know_nothing_of_processes():
    for folder in ("codecs", "kernels"):
        for path in (ROOT / folder).glob("*.py"):
            assert not any("distributed" in module for module in imports(path)), path


def test_the_command_line_imports_nothing_slow_but_torch():
    """FSDP alone takes half as long to import as torch."""
    slow = {"torch.distributed.fsdp", "plotly", "numba", "llvmlite"}
    code = f"import sys, gradwire.cli; sys.exit(str({slow} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_there_is_no_drawer_for_odds_and_ends():
    assert not list(ROOT.rglob("utils.py"))
