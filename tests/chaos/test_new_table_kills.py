"""Tables join a PostgreSQL tunnel, and its query is killed at each of its transactions: every row arrives once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.json_forms import PLAIN
from headrace.ports import Store
from headrace.stores.postgres.tunnels import joining
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from headrace.testing.reading import drain
from tests.conformance import serving
from tests.conformance.pipelines import Checkpoint, TablePipeline

DEADLINE = 120.0
ROUNDS, ROWS = 3, 4
# The transactions from the first join on, and where each is killed. The second transaction is the join itself.
TIMES: dict[str, Iterable[int]] = {"uncommitted": (1, 2, 5, 40), "committed": (2, 3, 12, 90)}
if THOROUGH:
    TIMES = dict.fromkeys(TIMES, range(1, 160))


class JoiningPipeline(TablePipeline):
    """From a tunnel of all tables ``source_…`` into one table. Each round makes one, and writes rows into all."""

    @classmethod
    def create(cls, store: Store) -> None:
        for name in ("source_0", cls.sink):
            store.create_table(name, {"id": "string", "price": "long"}, "id")
        store.create_tunnel_of_tables("public.source_*", "changes")

    def __init__(self, store: Store, checkpoint: Checkpoint) -> None:
        super().__init__(store, checkpoint)
        self.feed = TunnelFeed(store.tunnel("changes").with_json(PLAIN), limits=Limits(rows_per_batch=3))

    def write(self, number: int) -> None:
        name = f"source_{number}"
        self.store.create_table(name, {"id": "string", "price": "long"}, "id", exist_ok=True)
        for table in (name, *(f"source_{each}" for each in range(number))):
            if self.store.table(table).get({"id": f"{number}-0"}) is None:
                self.store.table(table).put([{"id": f"{number}-{row}", "price": number} for row in range(ROWS)])

    def write_more(self) -> None:
        self.store.table("source_0").put([{"id": f"more-{row}", "price": row} for row in range(ROWS)])

    def rows(self, changes: Changes) -> list[pa.RecordBatch]:
        tables, texts = (changes.rows.column(name).to_pylist() for name in ("table", "row"))
        rows = [{**json.loads(text), "table": table} for table, text in zip(tables, texts, strict=True)]
        schema = pa.schema({"id": pa.string(), "price": pa.int64()})
        return [
            pa.RecordBatch.from_pylist(
                [{"id": f"{row['table']} {row['id']}", "price": row["price"]} for row in rows], schema
            )
        ]

    def check(self) -> None:
        found = self.store.table(self.sink).scan(["id"]).read_all().column("id").to_pylist()
        written = [
            f"source_{table} {number}-{row}"
            for table in range(ROUNDS)
            for number in range(table, ROUNDS)
            for row in range(ROWS)
        ]
        assert sorted(found) == sorted([*written, *(f"source_0 more-{row}" for row in range(ROWS))])
        description = self.store.tunnel("changes").describe()
        assert (description.backlog_rows, description.warnings) == (0, ())


def run(url: str, checkpoint: Path, point: str) -> None:
    """Run the pipeline to its end, or until a failpoint kills it after the begin of the first join."""
    joining.LOOK_SECONDS = 0.0
    publish = joining.Joining._publish

    def armed(*arguments: Any, **options: Any) -> None:
        failpoints.arm(point)
        joining.Joining._publish = publish  # type: ignore[method-assign]
        publish(*arguments, **options)

    joining.Joining._publish = armed  # type: ignore[method-assign]
    with headrace.open(url) as store:
        JoiningPipeline(store, Checkpoint(checkpoint)).run()
    os._exit(0)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("step", TIMES)
def test_tables_join_once_wherever_their_reader_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(joining, "LOOK_SECONDS", 0.0)
    for times in TIMES[step]:
        url, checkpoint, point = serving.postgres_database(f"{step}{times}"), tmp_path / str(times), f"{step}:{times}"
        with headrace.open(url) as store:
            JoiningPipeline.create(store)
            store.create_tunnel(JoiningPipeline.sink, "log", "Stream")
            process = CONTEXT.Process(target=run, args=(url, checkpoint, point))
            process.start()
            process.join(DEADLINE)
            try:
                assert process.exitcode == -signal.SIGKILL, f"{point}: the pipeline was not killed there"
            finally:
                process.kill()
                process.join()
            pipeline = JoiningPipeline(store, Checkpoint(checkpoint))
            pipeline.write_more()
            pipeline.run()
            pipeline.check()
            # A row that was published twice would be an update.
            assert {change.op for change in drain(store.tunnel("log"))} == {ChangeOp.INSERT}, point
            for tunnel in store.tunnels():
                store.drop_tunnel(tunnel.id)
