"""Every promise of docs/guarantees.md names existing tests, and at least one quick test.

Quick tests are those of `make test` and `make test-clusters`.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import NamedTuple

import pytest

from headrace.support.failpoints import POINTS
from tests.order import SUITE, TESTS

# The page names the tests of `headrace.testing.suite` by ``suite/``.
FOLDERS = (TESTS, SUITE.parent)
PAGE = TESTS.parent / "docs" / "guarantees.md"
# Marks of tests that are not quick.
SLOW = ("storm", "soak")
# The test that kills a pipeline at each failpoint.
KILLS = "conformance/test_failpoints.py"


class Promise(NamedTuple):
    """A row of one of the page's tables, and the tests that it names as ``file`` or ``file::function``."""

    text: str
    tests: tuple[str, ...]


def promises(page: str) -> list[Promise]:
    """Return the promises of a page: the rows of the tables whose last column is called ``test``."""
    found: list[Promise] = []
    inside = False
    for line in page.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[-1] == "test":
            inside = True
        elif inside and set(line) - set("|- "):
            found.append(Promise(cells[0], named_tests(cells[-1])))
    return found


def named_tests(cell: str) -> tuple[str, ...]:
    """Return the tests that a cell names: ``::function`` is one of the file before it, a failpoint names `KILLS`."""
    names: list[str] = []
    for name in re.findall(r"`([^`]+)`", cell):
        if name in POINTS:
            names.append(KILLS)
            continue
        names.append(names[-1].partition("::")[0] + name if name.startswith("::") and names else name)
    return tuple(names)


@cache
def functions_of(file: str) -> dict[str, bool]:
    """Return the tests of a file, and whether they are quick."""
    (path,) = (folder / file for folder in FOLDERS if (folder / file).is_file())
    tree = ast.parse(path.read_text())
    marks = " ".join(ast.unparse(node) for node in tree.body if "pytestmark" in ast.unparse(node)[:12])
    return {
        node.name: not any(f"mark.{slow}" in marks + " ".join(map(ast.unparse, node.decorator_list)) for slow in SLOW)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def faults(promise: Promise) -> list[str]:
    """Return the errors in the tests that a promise names."""
    if not promise.tests:
        return ["names no test"]
    found, quick = [], False
    for name in promise.tests:
        file, _, function = name.partition("::")
        if not any((folder / file).is_file() for folder in FOLDERS):
            found.append(f"there is no file {file}")
        elif function and function not in functions_of(file):
            found.append(f"there is no test {name}")
        else:
            # A file counts as a whole: a storm is not quick because the file also tests its oracle.
            quick = quick or (functions_of(file)[function] if function else all(functions_of(file).values()))
    return found if found or quick else ["names no quick test"]


@pytest.mark.parametrize("promise", promises(PAGE.read_text()), ids=lambda promise: promise.text[:60])
def test_each_promise_names_tests_and_a_quick_one_among_them(promise: Promise) -> None:
    assert faults(promise) == []


def test_the_page_names_each_failpoint() -> None:
    page = PAGE.read_text()
    assert [point for point in POINTS if f"`{point}`" not in page] == []


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        ("none", "names no test"),
        ("`unit/test_nowhere.py`", "there is no file unit/test_nowhere.py"),
        ("`unit/test_guarantees.py::test_nothing`", "there is no test unit/test_guarantees.py::test_nothing"),
        ("`chaos/test_queue_kills.py`", "names no quick test"),
        ("`chaos/test_soak.py`", "names no quick test"),
    ],
)
def test_a_promise_without_a_quick_test_is_found(cell: str, fault: str) -> None:
    (promise,) = promises(f"| promise | how | test |\n|---|---|---|\n| all is well | somehow | {cell} |\n")
    assert faults(promise) == [fault]
