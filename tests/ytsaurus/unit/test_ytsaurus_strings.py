"""Tables of earlier versions of the YTsaurus endpoint, whose strings are texts, are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.context import Answer
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.tree import TRUNK, Facet
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.wire.errors import YtError
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of

KEY = {"name": "k", "type": "string", "sort_order": "ascending"}
VALUE = {"name": "v", "type": "string"}
MARK = '"binary_strings": true, '


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def given(cluster: Cluster, name: str, rows: bytes, **parameters: Any) -> Answer:
    """Run a command with rows in text YSON."""
    return execute(cluster.context(), COMMANDS[name], Parameters(parameters, name), rows)


def table(cluster: Cluster, path: str, *schema: dict[str, Any], old: bool, **attributes: Any) -> None:
    """Create a table, with ``old`` in the form of earlier versions: its strings are texts."""
    columns = [{**column, "type": "utf8"} if old and column["type"] == "string" else column for column in schema]
    call(cluster, "create", type="table", path=path, attributes={"schema": columns, **attributes})
    if old:
        with cluster.database.write() as connection:
            node = cluster.cypress.find(path)
            kept = table_state.load(connection, node)
            text = kept.schema.to_json()
            assert MARK in text
            before = text.replace(MARK, "").replace("utf8", "string")
            if kept.dynamic:
                connection.execute("UPDATE yt_table SET schema = ? WHERE node = ?", (before, node.id))
            else:
                cluster.cypress.tree.put(TRUNK, node.id, Facet.CONTENT, "", before.encode())


def rows_in(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    answer = call(cluster, "select_rows", query=f"* from [{path}]")
    assert answer.batches is not None
    return [row for batch in answer.batches for row in batch.to_pylist()]


def test_a_sorted_table_of_texts_is_read_written_widened_and_copied_as_one(cluster: Cluster) -> None:
    table(cluster, "//tmp/t", KEY, VALUE, old=True, dynamic=True)
    assert [column["type"] for column in value_of(cluster, "//tmp/t/@schema")] == ["string", "string"]
    call(cluster, "alter_table", path="//tmp/t", schema=[KEY, VALUE, {"name": "w", "type": "string"}])
    call(cluster, "copy", source_path="//tmp/t", destination_path="//tmp/copy")
    for path in ("//tmp/t", "//tmp/copy"):
        call(cluster, "mount_table", path=path)
        given(cluster, "insert_rows", b"{k=a; v=b; w=c};", path=path)
        assert rows_in(cluster, path) == [{"k": "a", "v": "b", "w": "c"}]
        with pytest.raises(YtError, match=r"'w'.*not UTF-8"):
            given(cluster, "insert_rows", rb'{k=a; v=b; w="\xff"};', path=path)
        stored = cluster.store.table(path).schema
        assert {column.type for column in stored.columns} == {pa.string()}


def test_a_queue_of_texts_is_read_and_written_as_one(cluster: Cluster) -> None:
    table(cluster, "//tmp/q", VALUE, old=True, dynamic=True)
    call(cluster, "mount_table", path="//tmp/q")
    given(cluster, "insert_rows", b"{v=b};", path="//tmp/q")
    cluster.store.queue("//tmp/q").append([{"v": "from beside"}])
    assert [row["v"] for row in rows_in(cluster, "//tmp/q")] == ["b", "from beside"]
    with pytest.raises(YtError, match=r"'v'.*not UTF-8"):
        given(cluster, "insert_rows", rb'{v="\xff"};', path="//tmp/q")


def test_a_static_table_of_texts_takes_any_bytes(cluster: Cluster) -> None:
    table(cluster, "//tmp/s", VALUE, old=True)
    given(cluster, "write_table", rb'{v="\xff"};', path="//tmp/s")
    call(cluster, "alter_table", path="//tmp/s", dynamic=True)
    call(cluster, "mount_table", path="//tmp/s")
    assert [row["v"] for row in rows_in(cluster, "//tmp/s")] == [b"\xff"]


def test_new_tables_have_bytes_where_they_say_string_and_texts_where_they_say_so(cluster: Cluster) -> None:
    table(cluster, "//tmp/t", KEY, VALUE, {"name": "u", "type": "utf8"}, old=False, dynamic=True)
    stored = {column.name: column.type for column in cluster.store.table("//tmp/t").schema.columns}
    assert stored == {"k": pa.binary(), "v": pa.binary(), "u": pa.string()}
