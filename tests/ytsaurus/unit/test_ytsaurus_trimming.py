"""Automatic trimming of queues of the YTsaurus endpoint."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.queues.trimming import trim_old_rows
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of


def test_old_rows_are_trimmed_without_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    config = {"enable": True, "retained_lifetime_duration": 3_600_000}
    schema = [{"name": "data", "type": "string"}]
    attributes = {"dynamic": True, "schema": schema, "auto_trim_config": config}
    call(cluster, "create", type="table", path="//tmp/q", attributes=attributes)
    call(cluster, "create", type="queue_consumer", path="//tmp/c")
    call(cluster, "mount_table", path="//tmp/q")
    call(cluster, "register_queue_consumer", queue_path="//tmp/q", consumer_path="//tmp/c", vital=True)
    cluster.store.queue("//tmp/q").append([{"data": b"a"}, {"data": b"b"}])
    advance = {"queue_path": "//tmp/q", "consumer_path": "//tmp/c", "partition_index": 0, "new_offset": 1}
    call(cluster, "advance_queue_consumer", client_side=True, **advance)

    def kept() -> int:
        trim_old_rows(cluster.database)
        return int(value_of(cluster, "//tmp/q/@queue_partitions/0/available_row_count"))

    assert kept() == 2
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3601)
    assert kept() == 1
    cluster.close()
