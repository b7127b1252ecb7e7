"""The state that streams keep in their targets' stores: on the command line, on the page, and as metrics."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.batches.sinks import batch_figures
from headrace.batches.sinks.jobs import TargetJob, TargetJobs
from headrace.cli.main import main
from headrace.formats.location import Location
from headrace.model.tunnels.lag import Lag
from headrace.monitoring.exposition import exposition, make_registry
from headrace.ports import Store
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.stream_states import kept_beside
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.requests import Request
from headrace.ui.site import Site
from headrace.ui.stream_pages import stream_page
from tests.clocks import patch_time

REQUEST = Request("GET", "/stream", {"name": "spent"}, {}, {}, 0)
PARTS = {"gather": 0.25, "evaluate": 0.5, "publish": 0.125}


@dataclass
class Followed:
    """A stream ``spent`` with the state of a query that has run."""

    directory: Path
    workspace: Workspace
    store: Store

    def states(self) -> dict[str, int | None]:
        found = kept_beside(StreamRegistry(self.workspace).all(), Catalog(self.workspace))
        return {each.content: each.size.rows for each in found["spent"].states}


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    workspace = Workspace(tmp_path / "jobs")
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        for name in ("totals", "kept", "groups"):
            store.create_table(name, {"id": "long", "text": "string"}, "id")
        store.table("kept").put([{"id": number, "text": "x" * 96} for number in range(500)])
        contents = {"kept": "orders by (user)", "groups": "groups"}
        job = TargetJob("totals", "query", {}, state_tables=tuple(contents), contents=contents)
        _, claim = TargetJobs(store).begin(job, 0)
        store.publisher("query").publish(0, [], claim=claim)
        Catalog(workspace).add_table(TableDefinition("spent_now", "headrace", {"store": store.url, "table": "totals"}))
        streams = StreamRegistry(workspace)
        streams.record_start("spent", script="CREATE STREAM …", fingerprint="1", target="spent_now", checkpoint="cp")
        streams.set_running("spent", "query")
        durations = {"triggerExecution": 1.0, "addBatch": 0.9, **PARTS}
        streams.set_progress("spent", 0, 1.0, None, [BatchRecord(time.time(), 0, 1, 1, durations)])
        yield Followed(tmp_path / "jobs", workspace, store)


def test_each_table_of_state_has_its_content_and_its_size(followed: Followed) -> None:
    assert followed.states() == {"orders by (user)": 500, "groups": 0}
    followed.store.table("kept").delete([{"id": 1}])
    assert followed.states()["orders by (user)"] == 499


def test_state_of_another_query_or_of_a_lost_store_is_not_shown(followed: Followed) -> None:
    StreamRegistry(followed.workspace).set_running("spent", "another")
    assert followed.states() == {}
    StreamRegistry(followed.workspace).set_running("spent", "query")
    followed.store.drop_table("kept")
    assert followed.states() == {}


def test_the_command_shows_state_and_the_parts_of_the_last_batch(
    followed: Followed, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["stream", "describe", "spent", "-w", str(followed.directory)]
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kept, groups = shown["state_tables"]
    assert (kept["state"], kept["rows"], kept["rows_exact"], kept["bytes_exact"]) == (
        "orders by (user)", 500, True, False,
    )  # fmt: skip
    assert 500 * 96 < kept["bytes"] < 500 * 130
    assert (groups["rows"], groups["bytes"]) == (0, 0)
    assert [shown[f"{part}_seconds"] for part in PARTS] == list(PARTS.values())
    assert main(arguments) == 0
    assert re.search(r"orders by \(user\) +500", capsys.readouterr().out)


@pytest.mark.parametrize("face", ["command", "page", "metrics"])
def test_state_and_bad_rows_are_read_from_one_opened_store(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    followed.store.create_bad_rows("totals")
    followed.store.table("totals_bad_rows").put({"key": '{"id":1}', "change": "put", "row": "{}", "stream": "spent"})
    opened: list[Location] = []
    open_store = Location.open_store

    def counted(location: Location) -> Store:
        opened.append(location)
        return open_store(location)

    monkeypatch.setattr(Location, "open_store", counted)
    if face == "command":
        assert main(["stream", "describe", "spent", "-w", str(followed.directory), "--json"]) == 0
    elif face == "page":
        site = Site(followed.store, followed.directory)
        values = stream_page(site, REQUEST).values
        site.close()
        assert (len(values["states"]), values["bad_rows"]) == (2, 1)
    else:
        text = exposition(make_registry(followed.workspace))[0].decode()
        assert 'headrace_stream_bad_rows{stream="spent"} 1.0' in text
        assert "headrace_state_table_rows" in text
    assert len(opened) == 1


def test_the_page_shows_state_and_the_parts_of_the_last_batch(followed: Followed) -> None:
    site = Site(followed.store, followed.directory)
    try:
        page = stream_page(site, REQUEST)
        assert page.values["parts"] == PARTS
        assert [each.size.rows for each in page.values["states"]] == [500, 0]
        # Refreshes within a few seconds do not open the store again.
        followed.store.drop_table("kept")
        assert stream_page(site, REQUEST).values["states"] == page.values["states"]
        phases = html.unescape(str(page.values["charts"]))
        assert all(name in phases for name in ("gather rows", "evaluate", "publish"))
    finally:
        site.close()


def test_metrics_have_the_state_the_lag_and_the_parts_of_batches(followed: Followed) -> None:
    registry = make_registry(followed.workspace)
    durations, lag = {"triggerExecution": 1.0, "addBatch": 0.9, **PARTS}, Lag(3, seconds=2.5, bytes=90)
    StreamRegistry(followed.workspace).set_progress(
        "spent", 1, 1.0, lag, [BatchRecord(time.time() + 1, 1, 1, 1, durations, state_rows=7, state_bytes=70)]
    )
    text, _ = exposition(registry)
    found = {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "stream")): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found["headrace_state_table_rows", "orders by (user)"] == 500
    assert found["headrace_state_table_bytes", "groups"] == 0
    assert found["headrace_batch_part_seconds_sum", "gather"] == 0.25
    assert found["headrace_batch_part_seconds_count", "publish"] == 1
    assert found["headrace_stream_state_rows",] == 7
    assert (found["headrace_stream_lag_seconds",], found["headrace_stream_lag_bytes",]) == (2.5, 90)
    assert ("headrace_batch_seconds_sum", "gather") not in found


def test_a_part_within_another_one_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # The begin of the outer part, begin and end of the two inner ones, and the end of the outer one.
    moments = iter([0.0, 0.0, 0.02, 0.02, 0.03, 0.03])
    patch_time(monkeypatch, "headrace.batches.sinks.batch_figures", monotonic=lambda: next(moments))
    with batch_figures.part("job", 1, "evaluate"):
        with batch_figures.part("job", 1, "gather"):
            pass
        with batch_figures.part("job", 1, "gather"):
            pass
    seconds = batch_figures.figures_of("job", 1).seconds
    assert seconds["gather"] >= 0.03
    assert seconds["evaluate"] < 0.02
    batch_figures.begin("job", 1)
    assert batch_figures.figures_of("job", 1).seconds == {}
