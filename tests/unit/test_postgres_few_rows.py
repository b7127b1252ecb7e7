"""A few rows as parameters of a statement of PostgreSQL."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.stores.postgres.tables.statements import STAGED, Given


def test_rows_are_parameters_in_the_order_of_their_cells() -> None:
    rows = pa.table({"id": pa.chunked_array([[1], [2]]), "name": ["a", None]})
    few = Given.of(rows)
    assert few is not None
    assert few.source.as_string(None) == "(SELECT * FROM (VALUES ($1, $2), ($3, $4)) v OFFSET 0) s (c0, c1)"
    cells = few.parameters
    assert cells.schema.types == [pa.int64(), pa.string()] * 2
    assert list(cells.to_pylist()[0].values()) == [1, "a", 2, None]
    assert STAGED.as_string(None) == 'pg_temp."headrace_rows" s'


@pytest.mark.parametrize(("rows", "columns", "few"), [(0, 2, False), (1, 100, True), (50, 2, True), (51, 2, False)])
def test_no_rows_and_many_cells_are_no_parameters(rows: int, columns: int, few: bool) -> None:
    table = pa.table({f"c{place}": pa.array(range(rows)) for place in range(columns)})
    assert (Given.of(table) is not None) is few


def test_large_values_are_no_parameters() -> None:
    assert Given.of(pa.table({"id": [1], "value": [b"x" * (1 << 20)]})) is None
