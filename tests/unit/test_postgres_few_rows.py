"""A few rows as parameters of a statement of PostgreSQL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.stores.postgres.tables.statements import STAGED, Given


def test_the_values_of_a_column_are_a_parameter() -> None:
    rows = pa.table({"id": pa.chunked_array([[1], [2]]), "name": ["a", None]})
    few = Given.of(rows)
    assert few is not None
    assert few.source.as_string(None) == (
        "(SELECT * FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) v OFFSET 0) s (c0, c1)"
    )
    assert few.parameters.schema.types == [pa.list_(pa.int64()), pa.list_(pa.string())]
    assert list(few.parameters.to_pylist()[0].values()) == [[1, 2], ["a", None]]
    assert STAGED.as_string(None) == 'pg_temp."headrace_rows" s'


@pytest.mark.parametrize(
    ("rows", "columns", "few"), [(0, 2, False), (1, 20_000, True), (10_000, 2, True), (10_001, 2, False)]
)
def test_no_rows_and_many_cells_are_no_parameters(rows: int, columns: int, few: bool) -> None:
    table = pa.table({f"c{place}": pa.array(range(rows)) for place in range(columns)})
    assert (Given.of(table) is not None) is few


def test_lists_are_no_parameters() -> None:
    assert Given.of(pa.table({"id": [1], "tags": [["a"]]})) is None


def test_large_values_are_no_parameters() -> None:
    assert Given.of(pa.table({"id": [1], "value": [b"x" * (1 << 20)]})) is None
