"""Writes into the SQLite table of an embedded table."""

from __future__ import annotations

import apsw
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.support.sqlite.notes import provide_notes

SCHEMA = TableSchema.of({"a": "string", "b": "long", "c": "binary"}, ["a", "b", "c"])
KEYS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "a\0", "ab", "\ud7ff", "\uffff", "\U0001d11e"]),
        st.sampled_from([-(2**63), -1, 0, 2**63 - 1]),
        st.sampled_from([b"", b"\0", b"a", b"\xff"]),
    ),
    unique=True,
    max_size=20,
).map(sorted)


@given(stored=KEYS, others=KEYS)
def test_writes_and_deletes_return_which_keys_existed(
    stored: list[tuple[str, int, bytes]], others: list[tuple[str, int, bytes]]
) -> None:
    table = PhysicalTable(1, SCHEMA, 1)

    def batch(keys: list[tuple[str, int, bytes]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip("abc", key, strict=True)) for key in keys], SCHEMA.arrow)

    with apsw.Connection(":memory:") as connection:
        provide_notes(connection)
        table.create(connection)
        assert not table.write(connection, table.codec.encode(batch(stored))).any()
        assert table.write(connection, table.codec.encode(batch(stored))).all()
        deleted = table.delete(connection, table.codec.encode_keys(batch(others)))
        assert deleted.tolist() == [key in stored for key in others]
        written = table.write(connection, table.codec.encode(batch(stored)))
        assert written.tolist() == [key not in others for key in stored]
