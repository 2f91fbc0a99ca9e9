"""Imports point one way, from room to room, and never in a circle."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import gradwire

ROOT = Path(gradwire.__file__).parent
ROOMS = [
    {"key", "scratch"},
    {"kernels"},
    {"codec"},
    {"adaptive"},
    {"codecs"},
    {"wire", "transport"},
    {"collectives"},
    {"reduction"},
    {"planner"},
    {"adapters"},
    {"integrations", "terminal"},
    {"algorithms"},
    {"lab"},
    {"cli"},
]
"""Each imports from those above it. `__init__` and `__main__` may import everything."""


def walk(tree):
    """All nodes but those that only a type checker looks at."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from walk(node)


def imports(path):
    """Modules that a file, or a function in it, imports; those for types alone do not count."""
    for node in walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def room_of(module):
    """The place of a module of gradwire in `ROOMS`; whatever is not named there is at the top."""
    name = module.split(".")[1]
    return next((i for i, room in enumerate(ROOMS) if name in room), len(ROOMS))


def module_of(path):
    """The name that a file is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("gradwire", *(part for part in parts if part != "__init__")))


def own_imports(path):
    """Those of `imports` that are files of gradwire, by module."""
    for module in imports(path):
        if module.startswith("gradwire.") and module != "gradwire.__version__":
            yield module


def test_imports_point_one_way():
    for path in ROOT.rglob("*.py"):
        if path.parent == ROOT and path.stem in ("__init__", "__main__"):
            continue
        own = room_of(module_of(path))
        for module in own_imports(path):
            assert room_of(module) <= own, f"{path.relative_to(ROOT)} imports {module}"


def test_there_is_no_cycle_within_a_room():
    graph = {module_of(path): set(own_imports(path)) for path in ROOT.rglob("*.py")}
    packages = {module_of(path) for path in ROOT.rglob("__init__.py")}
    graph = {name: targets & set(graph) - packages for name, targets in graph.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # or it names the cycle


def test_type_checkers_see_the_public_names():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: f"gradwire.{gradwire._HOMES[alias.name]}" == line.module
            for line in block.body for alias in line.names}  # fmt: skip
    assert seen == dict.fromkeys(gradwire.__all__, True)
    assert all(getattr(gradwire, name).__name__ == name for name in gradwire.__all__)


def test_rooms_are_few():
    marks = {"__pycache__", "py.typed"}
    assert len([path for path in ROOT.iterdir() if path.name not in marks]) <= 19


def test_codecs_and_kernels_know_nothing_of_processes():
    for folder in ("codecs", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not any("distributed" in module for module in imports(path)), path


def test_the_command_line_imports_nothing_slow_but_torch():
    """FSDP alone takes half as long to import as torch."""
    slow = {"torch.distributed.fsdp", "numba", "llvmlite"}
    code = f"import sys, gradwire.cli.app; sys.exit(str({slow} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_there_is_no_drawer_for_odds_and_ends():
    assert not list(ROOT.rglob("utils.py"))
