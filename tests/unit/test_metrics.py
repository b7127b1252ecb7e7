"""Metrics, parsed by Prometheus' own parser: names, limits, counters that never decrease, the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.cli.main import main
from headrace.errors import StoreError
from headrace.model.tunnels.lag import Lag
from headrace.monitoring import process_metrics, stream_metrics
from headrace.monitoring.exposition import exposition, make_registry, serving_metrics
from headrace.ports import Store
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.support import counters
from headrace.testing.queue_reading import wait_until


@pytest.fixture(autouse=True)
def not_counting() -> Iterator[None]:
    # A page that other tests of this process serve counts, too.
    counters.disable()
    yield
    counters.disable()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "jobs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        table = store.create_table("t", columns={"id": "long"}, primary_key=["id"])
        table.put([{"id": number} for number in range(100)])
        store.create_tunnel("t", "all")
        queue = store.create_queue("q", columns={"id": "long"})
        store.create_consumer("c")
        store.register_consumer("q", "c")
        queue.append([{"id": 1}, {"id": 2}])
        yield store


def samples(registry: CollectorRegistry) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of all metrics by the values of their labels, in the order of the labels' names."""
    text, _ = exposition(registry)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def start(registry: StreamRegistry, name: str = "S") -> None:
    registry.record_start(name, script="", fingerprint="f", target="t", checkpoint="cp")


def batch(number: int, **values: object) -> BatchRecord:
    facts: dict[str, object] = {
        "rows_in": 100,
        "rows_out": 10,
        "durations": {"triggerExecution": 0.3, "addBatch": 0.2, "unknownPhase": 1.0},
        "lag": Lag(7),
        "watermark": 1000.0,
        "state_rows": 5,
        "state_bytes": 4096,
    }
    return BatchRecord(time=time.time() + number, batch=number, **{**facts, **values})  # type: ignore[arg-type]


def test_streams_have_rows_lag_and_durations(workspace: Workspace) -> None:
    streams, registry = StreamRegistry(workspace), make_registry(workspace)
    start(streams)
    streams.set_progress("S", 1, 50.0, Lag(200, 1), [batch(1), batch(2, rows_out=None)])
    found = samples(registry)
    assert found["headrace_stream_rows_total"] == {("in", "S"): 200, ("out", "S"): 10}
    assert found["headrace_stream_lag_rows"] == {("S",): 200}
    assert abs(found["headrace_stream_lag_timestamp_seconds"]["S",] - time.time()) < 60
    assert found["headrace_stream_lag_unknown_channels"] == {("S",): 1}
    assert found["headrace_stream_eta_seconds"] == {("S",): 4}
    assert found["headrace_stream_running"] == {("S",): 1}
    assert found["headrace_stream_lost"] == {("S",): 0}
    assert found["headrace_stream_watermark_timestamp_seconds"] == {("S",): 1000}
    assert found["headrace_stream_state_bytes"] == {("S",): 4096}
    assert found["headrace_batch_seconds_sum"] == {("triggerExecution", "S"): 0.6, ("addBatch", "S"): 0.4}
    assert found["headrace_batch_seconds_count"]["addBatch", "S"] == 2
    assert found["headrace_batch_seconds_bucket"]["0.1", "addBatch", "S"] == 0
    assert found["headrace_batch_seconds_bucket"]["0.25", "addBatch", "S"] == 2
    streams.set_progress("S", 3, 50.0, Lag(0), [batch(3)])
    assert samples(registry)["headrace_stream_rows_total"]["in", "S"] == 300


def test_counters_begin_with_the_collector(workspace: Workspace) -> None:
    streams = StreamRegistry(workspace)
    start(streams)
    streams.set_progress("S", 1, 50.0, Lag(0), [batch(-60)])
    found = samples(make_registry(workspace, own_streams=True))
    assert found["headrace_stream_batches_total"] == {("S",): 0}
    assert found["headrace_stream_state_rows"] == {("S",): 5}


def test_the_number_of_streams_and_tunnels_is_limited(
    workspace: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_metrics, "MOST_STREAMS", 2)
    monkeypatch.setattr(process_metrics, "MOST_READERS", 1)
    for name in "abc":
        start(StreamRegistry(workspace), name)
    store.create_tunnel("t", "another")
    found = samples(make_registry(workspace, store))
    assert list(found["headrace_stream_running"]) == [("a",), ("b",)]
    assert len(found["headrace_tunnel_lag_rows"]) == 1


def test_the_lag_of_a_tunnel_counts_base_data(store: Store) -> None:
    registry = make_registry(store=store)
    found = samples(registry)
    assert found["headrace_tunnel_lag_rows"] == {("t", "all"): 100}
    assert found["headrace_tunnel_lag_unknown_channels"] == {("t", "all"): 0}
    assert found["headrace_tunnel_base_ranges"] == {("read", "t", "all"): 0, ("unread", "t", "all"): 1}
    assert found["headrace_consumer_lag_rows"] == {("c", "q"): 2}
    free, size = (found[f"headrace_store_disk_{name}_bytes"][()] for name in ("free", "size"))
    assert 0 < free < size
    operations = samples(registry)["headrace_store_operations_total"]
    assert operations["Store.tunnels", "success"] >= 1
    with pytest.raises(headrace.errors.NotFoundError):
        store.table("missing")
    assert samples(registry)["headrace_store_operations_total"]["Store.table", "error"] == 1


def test_a_store_that_does_not_answer_hides_no_streams(
    workspace: Workspace, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(StreamRegistry(workspace))
    registry = make_registry(workspace, store)
    assert samples(registry)["headrace_store_reachable"] == {(): 1}

    def down(*_: object) -> None:
        raise StoreError("the server does not answer")

    monkeypatch.setattr(type(store), "consumers", down)
    found = samples(registry)
    assert found["headrace_store_reachable"] == {(): 0}
    assert found["headrace_stream_running"] == {("S",): 1}
    assert "headrace_tunnel_lag_rows" not in found


def test_a_server_answers_prometheus(workspace: Workspace) -> None:
    registry = make_registry(workspace)
    with serving_metrics(registry, 0) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", url)
        with urllib.request.urlopen(url) as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=")
            text = answer.read().decode()
        assert "headrace_stream_running" in {family.name for family in text_string_to_metric_families(text)}
        with pytest.raises(HTTPError, match="404") as refused:
            urllib.request.urlopen(url.replace("/metrics", "/other"))
        refused.value.close()
        # The server counts a request after it has answered.
        counted = {("GET", "monitoring", "200"): 1, ("GET", "monitoring", "404"): 1}
        wait_until(lambda: counted.items() <= samples(registry)["headrace_http_requests_total"].items())


def test_operations_are_not_counted_until_metrics_are_read(store: Store) -> None:
    store.tables()
    assert counters.of_family("store") == {}


def test_run_serves_metrics_and_names_their_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "job.sql"
    # Without a statement, no Spark starts.
    script.write_text("-- nothing")
    assert main(["run", str(script), "-w", str(tmp_path), "--metrics-port", "0", "--traces", "--json"]) == 0
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", json.loads(capsys.readouterr().out)["metrics"])
    assert main(["run", str(script), "--metrics-port", "0", "--metrics-host", "203.0.113.7"]) == 1
    assert "cannot serve metrics at this address" in capsys.readouterr().err


def test_serve_counts_the_requests_to_an_endpoint(tmp_path: Path) -> None:
    command = ["serve", "--ytsaurus", "0", "--root", str(tmp_path), "--metrics-port", "0", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", *command],
        env={**os.environ, "HEADRACE_YT_TOKEN": "a-token-of-tests"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            assert server.stdout is not None
            metrics = json.loads(server.stdout.readline())["metrics"]
            endpoint = json.loads(server.stdout.readline())["endpoint"]
            with pytest.raises(HTTPError, match="401") as refused:
                urllib.request.urlopen(f"{endpoint}/api/v3/list?path=/")
            refused.value.close()
            counted = b'headrace_http_requests_total{method="GET",server="endpoints.ytsaurus",status="401"} 1.0'
            wait_until(lambda: counted in read(metrics))
        finally:
            server.terminate()
        assert server.wait(20) == 0


def read(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
from headrace.errors import MissingDependencyError
from headrace.monitoring.exposition import make_registry
try:
    make_registry()
except MissingDependencyError as error:
    print(error.remedy)
"""


def test_a_missing_package_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'headrace[metrics]'\n"
