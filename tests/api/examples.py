"""The examples in the docstrings of the public names, and the code that docs/python.md puts before them."""

from __future__ import annotations

import ast
import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import headrace
from tests.documents import absolute, blocks

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(directory: Path = Path()) -> Iterator[doctest.DocTest]:
    """Yield the examples of each public name, with ``directory`` before relative paths."""
    parser = doctest.DocTestParser()
    for name in headrace.__all__:
        text = absolute(inspect.cleandoc(getattr(headrace, name).__doc__ or ""), directory)
        yield parser.get_doctest(text, {}, name, None, None)


def needs(example: doctest.DocTest, *variables: str) -> bool:
    """Return whether the code of an example has one of these variables."""
    code = "".join(each.source for each in example.examples)
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return not names.isdisjoint(variables)


def run(example: doctest.DocTest, names: dict[str, Any]) -> str:
    """Run an example after a preamble with these names; return the differences of its output."""
    report: list[str] = []
    example.globs = names
    doctest.DocTestRunner(verbose=False, optionflags=_FLAGS).run(example, out=report.append, clear_globs=False)
    return "".join(report)


def variables(directory: Path, count: int = 1) -> dict[str, Any]:
    """Return the variables of the first blocks of docs/python.md: a store; a session; a query."""
    names: dict[str, Any] = {"__name__": "example"}
    for code in blocks("docs/python.md", "python")[:count]:
        exec(compile(absolute(code, directory), "docs/python.md", "exec"), names)
    return names
