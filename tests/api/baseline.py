"""The public names and their signatures: ``python -m tests.api.baseline`` records those of a release.

tests/api/released.txt has the names of the last release, as code without bodies. tests/api/declared_breaks.txt has the
changes since then that can break a program, a line each: the path, a colon, and what to do.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import griffe

import headrace

RELEASED = Path(__file__).with_name("released.txt")
DECLARED = Path(__file__).with_name("declared_breaks.txt")


def current() -> str:
    """Return the public names of the source: their signatures, and those of their public members."""
    lines: list[str] = []
    for name in headrace.__all__:
        value = getattr(headrace, name)
        # The data sources are made by a function, and have the interface of Spark.
        tree = ast.parse(f"class {name}: ...") if name.endswith("DataSource") else ast.parse(inspect.getsource(value))
        node = tree.body[0]
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        lines.append(ast.unparse(_signature(node)))
    return "\n".join(lines) + "\n"


def breaks(old: str, new: str) -> dict[str, str]:
    """Return the changes that can break a program: griffe's explanation by path."""
    before, after = (griffe.visit("headrace", Path("headrace.pyi"), code) for code in (old, new))
    found = griffe.find_breaking_changes(before, after)
    return {each.obj.path: each.explain(griffe.ExplanationStyle.ONE_LINE) for each in found}


def declared() -> set[str]:
    """Return the paths in the list of declared changes."""
    lines = DECLARED.read_text().splitlines()
    return {line.partition(":")[0] for line in lines if line and not line.startswith("#")}


def _signature(node: ast.ClassDef | ast.FunctionDef) -> ast.ClassDef | ast.FunctionDef:
    """Return a definition without bodies, docstrings, values and private members."""
    if isinstance(node, ast.FunctionDef):
        node.body = [ast.Expr(ast.Constant(...))]
    else:
        node.body = list(_members(node)) or [ast.Expr(ast.Constant(...))]
    return node


def _members(node: ast.ClassDef) -> Iterator[ast.stmt]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and (each.name == "__init__" or not each.name.startswith("_")):
            yield _signature(each)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id[0] != "_":
            yield each


def main() -> None:
    """Record the public names of this version."""
    RELEASED.write_text(current())
    DECLARED.write_text(f"# Changes of public names since {headrace.__version__} that can break a program.\n")


if __name__ == "__main__":
    main()
