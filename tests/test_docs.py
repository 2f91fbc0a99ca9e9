"""What the documentation says of tests and examples."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(test_\w+\.py)(?:::(test_\w+))?`")


def named_tests():
    return sorted(set(NAMED.findall((ROOT / "docs" / "guarantees.md").read_text())))


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_guarantees_name_tests_that_are_there(file, name):
    source = (ROOT / "tests" / file).read_text()
    assert f"\ndef {name}(" in source if name else "\ndef test_" in source


def test_every_promise_names_a_test():
    for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| Promise"):
            assert NAMED.search(line.rpartition(" | ")[2]), line


def test_the_readme_of_the_examples_names_every_one():
    folder = ROOT / "examples"
    named = set(re.findall(r"\]\((\w+\.py)\)", (folder / "README.md").read_text()))
    assert named == {path.name for path in folder.glob("*.py")}
