"""Columns can have any name: one module passes columns by position to Arrow's functions that read names as paths."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.rows import by_position

SOURCE = Path(headrace.__file__).parents[1]
NAMES = [".v", "v", ".a.b", "a.b", "../x", "a[0]", "[0]", ".", "..", ".[0]", "\\", ".a\\.b", " ", "*", "a\0b"]
PATH_CALLS = {
    *("sort_indices", "sort_by", "group_by", "select_k_unstable", "top_k_unstable", "bottom_k_unstable", "rank"),
    *("struct_field", "rank_quantile", "rank_normal", "pivot_wider", "join_asof", "nested_field"),
}
"""Names of Arrow's functions that read an argument with a leading dot as a path."""


def calls_by_path(text: str) -> list[str]:
    """Return the calls in a source text that would read the name of a column as a path."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, owner = node.func.attr, node.func.value
        is_compute = isinstance(owner, ast.Name) and owner.id in ("pc", "ds", "acero", "substrait")
        is_table_join = name == "join" and (len(node.args) > 1 or node.keywords)
        if name in PATH_CALLS or is_table_join or (is_compute and name in ("field", "dataset")):
            found.append(f"line {node.lineno}: {ast.unparse(node)[:80]}")
    return found


@pytest.mark.parametrize(
    "text",
    [
        "pc.sort_indices(rows, sort_keys=keys)",
        "rows.sort_by(name)",
        "rows.group_by(names).aggregate([])",
        "rows.filter(pc.field(name) > 1)",
        "here.join(there, names)",
        "here.join(there, keys=names)",
        "pc.struct_field(rows, name)",
    ],
)
def test_a_call_that_reads_names_as_paths_is_found(text: str) -> None:
    assert calls_by_path(text)


def test_no_other_module_calls_functions_that_read_names_as_paths() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place == "headrace/rows/by_position.py" or not (calls := calls_by_path(path.read_text())):
            continue
        found[place] = calls
    assert not found, "use headrace.rows.by_position"


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_sorted_grouped_and_compared_by_columns_of_any_name(name: str) -> None:
    # The table also has the column that the path would select.
    decoys = sorted({"v", "b", "a", "x"} - {name})
    rows = pa.table([[2, 1, 2, 3], *[[0, 0, 0, 0] for _ in decoys]], names=[name, *decoys])
    for given in (rows, rows.to_batches()[0]):
        assert by_position.sort_indices(given, [name]).to_pylist() == [1, 0, 2, 3]
        assert by_position.last_rows(given, [name]).tolist() == [1, 2, 3]
        assert by_position.repeats(given, [name])
        assert not by_position.repeats(given.slice(1), [name])
    found = by_position.compared(rows.slice(1), pa.table([[2, 4]], names=[name]), [name])
    assert sorted(found.only_left.to_pylist()) == [0, 2]
    assert (found.only_right.to_pylist(), found.left.to_pylist(), found.right.to_pylist()) == ([1], [1], [0])
    key = rows.column(name)
    (keys,), (counts, sums) = by_position.aggregated([key], [("count_all", None), ("sum", key)])
    groups = zip(keys.to_pylist(), counts.to_pylist(), sums.to_pylist(), strict=True)
    assert sorted(groups) == [(1, 1, 1), (2, 2, 4), (3, 1, 3)]


def test_keys_of_several_columns_are_compared_in_their_order() -> None:
    rows = pa.table({".a": [1, 1, 0], "a": ["y", "x", "z"]})
    assert by_position.sort_indices(rows, [".a", "a"]).to_pylist() == [2, 1, 0]
    assert by_position.sort_indices(rows, ["a", ".a"]).to_pylist() == [1, 0, 2]


def test_an_empty_input_has_no_groups() -> None:
    none = pa.table({".a": pa.array([], pa.int64())})
    assert by_position.sort_indices(none, [".a"]).to_pylist() == []
    assert by_position.last_rows(none, [".a"]).tolist() == []
    assert not by_position.repeats(none, [".a"])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["a", "a", "b"], [1, 2, 0], True),
        (["a", "a", "b"], [2, 1, 3], False),
        (["b", "a", "c"], [1, 2, 3], False),
        (["a", "a"], [1, 1], False),
        (["a", None], [1, 2], False),
        (["a", "a"], [None, 1], False),
        (["Z", "a", "ä", "\U0001f600"], [0, 0, 0, 0], True),
        (["a"], [1], True),
    ],
)
def test_rows_with_different_keys_in_order_are_found(
    first: list[str | None], second: list[int | None], expected: bool
) -> None:
    rows = pa.table({".v": first, "v": second})
    assert by_position.are_sorted(rows, [".v", "v"]) is expected
    parts = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert by_position.are_sorted(parts, [".v", "v"]) is expected
    if expected:
        assert by_position.sort_indices(rows, [".v", "v"]).to_pylist() == list(range(len(first)))


def test_no_rows_are_sorted() -> None:
    assert by_position.are_sorted(pa.schema({"v": pa.int64()}).empty_table(), ["v"])
