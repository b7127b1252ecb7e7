"""The change log: appended changes are read in order, from any row, with chunks of all sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded import chunks
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.tables import change_log
from headrace.testing.effort import thorough

SCHEMA = TableSchema.of({"id": "long", "name": "string", "price": "double"}, "id")
WIDER = SCHEMA.with_columns({"note": "string"})


class Bench:
    """One partition of a table in a new store, and the changes appended to it."""

    def __init__(self, directory: Path) -> None:
        self.database = Database(directory, create=True, synchronous="off")
        self.commits: list[tuple[int, int, int]] = []
        self.rows = 0
        with self.database.write() as connection:
            connection.execute(
                "INSERT INTO object (id, name, kind, options, schema_version) VALUES (1, 'orders', 'table', '{}', 1)"
            )
            connection.execute("INSERT INTO partition (id, object, parents, open) VALUES (1, 1, '[]', 1)")
            # Rows of neighbouring partitions must not be returned.
            for neighbour in (5, 2 << 40):
                connection.execute(
                    "INSERT INTO chunk (id, n, level, schema, version, ts, data) VALUES (?, 1, 9, 1, 1, 1, x'00')",
                    (neighbour,),
                )
        self.define(1, SCHEMA)

    def define(self, version: int, schema: TableSchema) -> None:
        with self.database.write() as connection:
            connection.execute(
                "INSERT INTO object_schema VALUES (1, ?, ?, ?)",
                (version, schema.arrow.serialize().to_pybytes(), json.dumps(schema.primary_key)),
            )
            connection.execute("UPDATE object SET schema_version = ?", (version,))

    def append(self, count: int, *, schema_version: int = 1, written: pa.BinaryArray | None = None) -> None:
        schema = SCHEMA if schema_version == 1 else WIDER
        number = len(self.commits) + 1
        numbers = range(self.rows, self.rows + count)
        columns: dict[str, Any] = {
            "id": list(numbers),
            "name": [f"row {n}" for n in numbers],
            "price": [n / 2 if n % 3 else None for n in numbers],
            "note": [f"note {n}" for n in numbers],
        }
        rows = pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema=schema.arrow)
        ops = pa.array([ChangeOp.INSERT] * count, pa.int8())
        with self.database.write() as connection:
            change_log.append(connection, 1, schema_version, rows, ops, written, number, number * 1000)
        self.commits.append((count, number, number * 1000))
        self.rows += count

    def read(self, first: int = 0, max_rows: int = 1 << 40, until: int | None = None) -> tuple[Any, int]:
        with self.database.read() as connection:
            return change_log.read(connection, 1, first, max_rows, until)

    def read_all(self, first: int, max_rows: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            changes, behind = self.read(first, max_rows)
            if behind == first:
                return found
            assert behind == first + changes.num_rows
            versions, times = changes.versions.to_pylist(), changes.timestamps.cast(pa.int64()).to_pylist()
            found += [
                {**row, "_version": version, "_ts": ts}
                for row, version, ts in zip(changes.rows.to_pylist(), versions, times, strict=True)
            ]
            first = behind

    def chunks(self) -> list[tuple[int, int, int]]:
        return [
            (chunk & ((1 << 40) - 1), n, size)
            for chunk, n, size in self.database.query(
                f"SELECT id, n, length(data) FROM chunk WHERE id >= {1 << 40} AND id < {2 << 40} ORDER BY id"
            )
        ]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


sizes = st.lists(st.one_of(st.integers(1, 3), st.sampled_from([100, 5000])), min_size=1, max_size=200)


@settings(max_examples=thorough(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=sizes, data=st.data())
def test_every_change_is_read_once_in_order_from_any_row(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    bench = Bench(tmp_path_factory.mktemp("log"))
    for size in sizes:
        bench.append(size)
    first = data.draw(st.integers(0, bench.rows), label="first")
    rows = bench.read_all(first, data.draw(st.sampled_from([1, 50, 1 << 40]), label="max_rows"))
    versions = np.repeat([c[1] for c in bench.commits], sizes)
    assert [row["id"] for row in rows] == list(range(first, bench.rows))
    assert [row["_version"] for row in rows] == versions[first:].tolist()
    assert [row["_ts"] for row in rows] == (versions[first:] * 1000).tolist()
    chunks = bench.chunks()
    assert [start for start, _, _ in chunks] == np.cumsum([0, *(n for _, n, _ in chunks[:-1])]).tolist()
    ((next_row, log_bytes),) = bench.database.query("SELECT next, log_bytes FROM partition")
    assert (next_row, log_bytes) == (bench.rows, sum(size for _, _, size in chunks))


@settings(max_examples=thorough(25), deadline=None)
@given(sizes=sizes, data=st.data())
def test_a_time_finds_the_first_change_at_or_after_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    bench = Bench(tmp_path_factory.mktemp("log"))
    for size in sizes:
        bench.append(size)
    ts = data.draw(st.integers(0, (len(sizes) + 1) * 1000))
    times = np.repeat([c[2] for c in bench.commits], sizes)
    with bench.database.read() as connection:
        found = chunks.row_at_time(connection, 1, ts)
        assert found == int(np.searchsorted(times, ts))
        if found < bench.rows:
            assert chunks.time_of_row(connection, 1, found) == times[found]


def test_small_appends_are_merged_until_few_chunks_are_left(bench: Bench) -> None:
    for _ in range(64 * 64 + 5):
        bench.append(1)
    assert len(bench.chunks()) == 1 + 5
    assert len(bench.read_all(0, 1 << 40)) == 64 * 64 + 5


def test_a_merged_chunk_that_is_large_enough_is_not_merged_again(bench: Bench) -> None:
    for _ in range(64 * 3):
        bench.append(200)
    assert [n for _, n, _ in bench.chunks()] == [200 * 64] * 3


def test_a_large_append_is_split_into_chunks_of_65536_rows(bench: Bench) -> None:
    bench.append(150_000)
    assert [n for _, n, _ in bench.chunks()] == [65536, 65536, 150_000 - 2 * 65536]
    assert [row["id"] for row in bench.read_all(65_000, 1000)] == list(range(65_000, 150_000))


def test_a_page_is_not_limited_by_rows_inside_a_chunk_but_ends_before_until(bench: Bench) -> None:
    bench.append(5000)
    bench.append(5000)
    assert bench.read(10, 1)[1] == 5000
    assert bench.read(10, 6000)[1] == 10_000
    assert bench.read(10, 6000, until=20)[1] == 20
    assert bench.read(20, 6000, until=20)[1] == 20


def test_changes_before_a_new_column_have_null_in_it(bench: Bench) -> None:
    for _ in range(70):
        bench.append(1)
    bench.define(2, WIDER)
    for _ in range(70):
        bench.append(1, schema_version=2)
    rows = bench.read_all(0, 1 << 40)
    assert [row["note"] for row in rows] == [None] * 70 + [f"note {n}" for n in range(70, 140)]
    assert [row["_version"] for row in rows] == list(range(1, 141))


def test_written_cells_are_known_by_attribute(bench: Bench) -> None:
    bench.append(3, written=pa.array([b"\x01", None, b"\x02"], pa.binary()))
    bench.define(2, WIDER)
    bench.append(1, schema_version=2, written=pa.array([b"\x04"], pa.binary()))
    written = bench.read()[0].written
    assert {name: values.to_pylist() for name, values in written.items()} == {
        "name": [True, True, False, False],
        "price": [False, True, True, False],
        "note": [False, True, False, True],
    }


def test_whole_rows_need_no_record_of_written_cells(bench: Bench) -> None:
    bench.append(3)
    assert bench.read()[0].written is None


@given(
    rows=st.lists(st.one_of(st.none(), st.lists(st.booleans(), min_size=0, max_size=20)), max_size=30),
    attributes=st.integers(1, 20),
)
def test_bitmaps_are_read_bit_by_bit(rows: list[list[bool] | None], attributes: int) -> None:
    bitmaps = [None if row is None else np.packbits(np.array(row, bool), bitorder="little").tobytes() for row in rows]
    names = [f"a{n}" for n in range(attributes)]
    # A slice, so that offsets do not begin at 0.
    found = change_log.decode_written(pa.array([b"\xff", *bitmaps], pa.binary())[1:], names)
    if all(row is None for row in rows):
        assert found is None
        return
    assert found is not None
    for index, name in enumerate(names):
        expected = [True if row is None else index < len(row) and row[index] for row in rows]
        assert found[name].to_pylist() == expected


def test_an_empty_log_returns_an_empty_page_with_the_columns(bench: Bench) -> None:
    changes, behind = bench.read()
    assert (changes.num_rows, behind) == (0, 0)
    assert changes.rows.schema == SCHEMA.arrow


def test_reading_removed_changes_is_an_error_that_names_the_loss(bench: Bench) -> None:
    bench.append(10)
    with bench.database.write() as connection:
        connection.execute("UPDATE partition SET first = 10")
        connection.execute(f"DELETE FROM chunk WHERE id = {1 << 40}")
    with pytest.raises(DataLossError, match=r"'orders'.*partition 1, log rows 4 to 9 \(6 changes\).*failOnDataLoss"):
        bench.read(4)
    assert bench.read(10)[1] == 10
