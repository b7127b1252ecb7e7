"""Requests that must either fail or have their whole effect."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.http.unpacking import Parts, inflate
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.tables.layout import MAX_KEY_BYTES
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, rows_of, start, value_of

REQUIRED = [{"name": "a", "type": "int8", "required": True}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture
def home(cluster: Cluster, tmp_path: Path) -> str:
    path = f"//tmp/{tmp_path.name}"
    call(cluster, "create", path=path, type="map_node", recursive=True)
    return path


@pytest.mark.parametrize("row", [{"a": None}, {}, {"a": 128}, {"a": "x"}])
def test_a_row_that_does_not_fit_a_static_table_is_a_violation_of_its_schema(
    cluster: Cluster, home: str, row: Any
) -> None:
    call(cluster, "create", path=f"{home}/t", type="table", attributes={"schema": REQUIRED})
    with pytest.raises(YtError) as found:
        call(cluster, "write_table", [{"a": 1}, row], path=f"{home}/t")
    assert found.value.code == Code.SCHEMA_VIOLATION
    assert rows_of(cluster, f"{home}/t") == []


@pytest.mark.parametrize("width", [1, 5], ids=["columns", "packed"])
def test_keys_of_dynamic_tables_have_a_maximum_length(cluster: Cluster, home: str, width: int) -> None:
    names = [f"k{number}" for number in range(width)]
    schema = [{"name": name, "type": "string", "sort_order": "ascending"} for name in names]
    schema.append({"name": "v", "type": "int64"})
    call(cluster, "create", path=f"{home}/t", type="table", attributes={"dynamic": True, "schema": schema})
    call(cluster, "mount_table", path=f"{home}/t")
    row = {**dict.fromkeys(names, ""), "v": 1}
    call(cluster, "insert_rows", [{**row, "k0": "x" * (MAX_KEY_BYTES - 100)}], path=f"{home}/t")
    for key in ({"k0": "x" * (MAX_KEY_BYTES + 1)}, dict.fromkeys(names, "x" * (MAX_KEY_BYTES // width + 1))):
        with pytest.raises(YtError, match="too long"):
            call(cluster, "insert_rows", [{**row, **key}], path=f"{home}/t")


@pytest.mark.parametrize("attribute", ["rename_columns={a=b}", 'transaction_id="1-2-10001-4"'])
def test_unsupported_path_attributes_are_refused_by_reads(cluster: Cluster, home: str, attribute: str) -> None:
    call(cluster, "write_table", [{"a": 1}], path=f"{home}/t")
    with pytest.raises(YtError, match=attribute.partition("=")[0]):
        rows_of(cluster, f"<{attribute}>{home}/t")


@pytest.mark.parametrize(
    ("ranges", "wanted"),
    [
        ("{exact={key=[1]}}", [1, 2]),
        ("{lower_limit={key=[2;b]}}", [4]),
        ("{lower_limit={};upper_limit={key=[2;b]}}", [1, 2, 3]),
        ("{upper_limit={}}", [1, 2, 3, 4]),
    ],
)
def test_rows_sorted_by_a_path_are_read_by_their_keys(
    cluster: Cluster, home: str, ranges: str, wanted: list[int]
) -> None:
    rows = [{"a": a, "b": b, "v": v} for v, (a, b) in enumerate([(1, "a"), (1, "b"), (2, "a"), (2, "b")], start=1)]
    call(cluster, "write_table", rows, path=f"<sorted_by=[a;b]>{home}/t")
    assert [row["v"] for row in rows_of(cluster, f"<ranges=[{ranges}]>{home}/t")] == wanted


def test_start_row_index_only_returns_no_rows(cluster: Cluster, home: str) -> None:
    call(cluster, "write_table", [{"a": 1}, {"a": 2}], path=f"{home}/t")
    answer = call(cluster, "read_table", path=f"{home}/t[#1:]", start_row_index_only=True)
    assert answer.stream is not None
    assert list(answer.stream) == []
    assert answer.parameters["start_row_index"] == 1


def test_unmet_prerequisites_are_errors(cluster: Cluster, home: str) -> None:
    over = start(cluster)
    abort(cluster, over)
    with pytest.raises(YtError) as found:
        call(cluster, "set", 1, path=f"{home}/n", prerequisite_transaction_ids=[over])
    assert found.value.code == Code.PREREQUISITE_CHECK_FAILED
    revision = value_of(cluster, f"{home}/@revision")
    for wrong in ({"path": home, "revision": revision + 1}, {"path": f"{home}/none", "revision": revision}):
        with pytest.raises(YtError) as found:
            call(cluster, "set", 1, path=f"{home}/n", prerequisite_revisions=[wrong])
        assert found.value.code == Code.PREREQUISITE_CHECK_FAILED
    assert value_of(cluster, home) == {}
    call(cluster, "set", 1, path=f"{home}/n", prerequisite_revisions=[{"path": home, "revision": revision}])
    assert value_of(cluster, home) == {"n": 1}


def test_thousands_of_gzip_streams_decompress_in_linear_time() -> None:
    begun = time.process_time()
    assert b"".join(inflate(Parts([gzip.compress(b"") * 50_000]))) == b""
    assert time.process_time() - begun < 3.0
