"""Columns whose names look like paths, patterns or code: a store keeps them unchanged, or refuses them at creation."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Append, Queue, Store, Table, Write
from headrace.testing.capabilities import traits
from headrace.testing.queue_reading import rows_in

NAMES = [".v", ".a.b", "a.b", "../x", "a[0]", "[0]", ".", "`v`", "a\0b"]


def with_decoys(name: str) -> list[str]:
    """Return the names of columns that the name would select as a path."""
    return [decoy for decoy in ("v", "a", "b", "x") if decoy != name]


def table_of(store: Store, name: str) -> Table | None:
    """Create a table with this key column, decoys and an attribute of a similar name. Return None if it is refused."""
    columns = {name: "string", **dict.fromkeys(with_decoys(name), "long"), f"{name}.n": "long"}
    try:
        return store.create_table("t", columns, name)
    except (OptionError, SchemaError, UnsupportedError):
        assert not traits(store).any_names
        assert store.tables() == []
        return None


@pytest.mark.parametrize("name", NAMES)
def test_a_key_column_with_any_name_works_or_is_refused_at_creation(store: Store, name: str) -> None:
    table, other = table_of(store, name), f"{name}.n"
    if table is None:
        return
    decoy = with_decoys(name)[0]
    table.put([{name: key, decoy: n, other: n} for key, n in (("b", 5), ("a", 1), ("b", 2), ("c", 0))])
    table.update([{name: "b", decoy: 7, other: None}, {name: "c", decoy: None, other: 8}], keep_nulls=False)
    found = table.scan([name, decoy, other]).read_all().to_pylist()
    assert found == [
        {name: "a", decoy: 1, other: 1},
        {name: "b", decoy: 7, other: 2},
        {name: "c", decoy: 0, other: 8},
    ]
    assert table.get({name: "b"}, [other]) == {other: 2}
    assert table.scan([other], {name: "b", other: [2, 3]}).read_all().to_pylist() == [{other: 2}]
    assert table.scan([name], [(other, ">", 1), (name, "starts with", "c")]).read_all().to_pylist() == [{name: "c"}]
    table.delete([{name: "a"}, {name: "b"}, {name: "b"}])
    assert table.scan([name]).read_all().to_pylist() == [{name: "c"}]


@pytest.mark.parametrize("name", [".v", ".a.b", "a.b", "a[0]"])
def test_publications_replace_tables_whose_key_has_any_name(store: Store, name: str) -> None:
    table, other = table_of(store, name), f"{name}.n"
    if table is None:
        return
    publisher = store.publisher("job")
    for batch, rows in enumerate([{"b": 5, "a": 1}, {"b": 2, "c": 3}, {"b": 2}]):
        given = [{name: key, other: n} for key, n in rows.items()]
        typed = pa.Table.from_pylist(given, schema=table.schema.arrow).to_batches()
        staged = publisher.stage(batch, typed, table="t", change=RowChange.REPLACE_ALL)
        publisher.publish(batch, [Write("t", RowChange.REPLACE_ALL, tuple(staged))])
        assert {row[name]: row[other] for row in table.scan().read_all().to_pylist()} == rows


@pytest.mark.needs("queues")
@pytest.mark.parametrize("name", NAMES[:5])
def test_a_queue_with_any_column_names_works_or_is_refused_at_creation(store: Store, name: str) -> None:
    try:
        queue: Queue = store.create_queue(
            "q", {name: "string", **dict.fromkeys(with_decoys(name), "long")}, partitions=2
        )
    except (OptionError, SchemaError, UnsupportedError):
        assert not traits(store).any_names
        assert store.queues() == []
        return
    decoy = with_decoys(name)[0]
    queue.append([{name: "a", decoy: 1}, {name: "b", decoy: 2}], key=name)
    publisher = store.publisher("job")
    typed = pa.Table.from_pylist([{name: "a", decoy: 3}], schema=queue.schema.arrow).to_batches()
    publisher.publish(0, [Append("q", tuple(publisher.stage_append(0, "q", typed, key=[name, decoy])))])
    assert sorted((row[name], row[decoy]) for number in (0, 1) for row in rows_in(queue, number)) == [
        ("a", 1),
        ("a", 3),
        ("b", 2),
    ]
