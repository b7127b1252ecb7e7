"""Strings of tables of the YTsaurus endpoint are bytes, and texts where their schema says so."""

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
from tests.ytsaurus.unit.ytsaurus_cluster import call

KEY = {"name": "k", "type": "string", "sort_order": "ascending"}
VALUE = {"name": "v", "type": "string"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def given(cluster: Cluster, name: str, rows: bytes, **parameters: Any) -> Answer:
    """Run a command with rows in text YSON."""
    return execute(cluster.context(), COMMANDS[name], Parameters(parameters, name), rows)


def rows_in(cluster: Cluster, path: str) -> list[dict[str, Any]]:
    answer = call(cluster, "select_rows", query=f"* from [{path}]")
    assert answer.batches is not None
    return [row for batch in answer.batches for row in batch.to_pylist()]


def test_a_static_table_takes_any_bytes_also_after_it_became_dynamic(cluster: Cluster) -> None:
    call(cluster, "create", type="table", path="//tmp/s", attributes={"schema": [VALUE]})
    given(cluster, "write_table", rb'{v="\xff"};', path="//tmp/s")
    call(cluster, "alter_table", path="//tmp/s", dynamic=True)
    call(cluster, "mount_table", path="//tmp/s")
    assert [row["v"] for row in rows_in(cluster, "//tmp/s")] == [b"\xff"]


def test_new_tables_have_bytes_where_they_say_string_and_texts_where_they_say_so(cluster: Cluster) -> None:
    schema = [KEY, VALUE, {"name": "u", "type": "utf8"}]
    call(cluster, "create", type="table", path="//tmp/t", attributes={"schema": schema, "dynamic": True})
    stored = {column.name: column.type for column in cluster.store.table("//tmp/t").schema.columns}
    assert stored == {"k": pa.binary(), "v": pa.binary(), "u": pa.string()}
