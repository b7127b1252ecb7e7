"""Kills at random moments: the driver with its JVM, Python workers, writers; nothing is lost and nothing is doubled."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace
from headrace.feeds.reading import read_channel
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.model import INITIAL_BATCH, ChangeOp
from headrace.ports import Store
from headrace.stores.embedded.database import Database
from tests.chaos import actors

KILLS = int(os.environ.get("HEADRACE_CHAOS_KILLS", "24"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", str(random.SystemRandom().randrange(10**6))))
# A driver takes seconds to come back, a worker none: so many kills of each in ten.
VICTIMS = ["driver"] * 3 + ["worker"] * 4 + ["writer"] * 3


class Actor:
    """A process group that is started again whenever it is dead."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.command = [sys.executable, "-m", "tests.chaos.actors", arguments[0], str(directory), *arguments[1:]]
        self.log = (directory / f"{'-'.join(arguments)}.log").open("ab")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            self.command,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        return self.process

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def workers(self) -> list[psutil.Process]:
        """The Python worker processes of a driver."""
        try:
            return [
                process
                for process in psutil.Process(self.process.pid).children(recursive=True)
                if "pyspark.daemon" in " ".join(process.cmdline()) and "pyspark.daemon" in " ".join(_parent(process))
            ]
        except psutil.NoSuchProcess:
            return []


def _parent(process: psutil.Process) -> list[str]:
    parent = process.parent()
    return parent.cmdline() if parent else []


@pytest.fixture
def actors_of(tmp_path: Path) -> Iterator[list[Actor]]:
    running: list[Actor] = []
    yield running
    for actor in running:
        actor.kill()
        actor.log.close()


@pytest.mark.timeout(3600)
def test_kills_at_any_moment_lose_nothing_and_double_nothing(tmp_path: Path, actors_of: list[Actor]) -> None:
    chance = random.Random(SEED)
    store = actors.create(tmp_path)
    driver = Actor(tmp_path, "driver")
    writers = [Actor(tmp_path, "writer", str(SEED + number)) for number in range(2)]
    actors_of += [driver, *writers]
    killed: Counter[str] = Counter()
    while killed.total() < KILLS:
        _wait_for(lambda: (tmp_path / "running").exists() or driver.process.poll() is not None, 120)
        time.sleep(chance.uniform(0.1, 2.5))
        victim = chance.choice(VICTIMS)
        if victim == "driver":
            driver.kill()
            (tmp_path / "running").unlink(missing_ok=True)
            driver.start()
        elif victim == "writer":
            writer = chance.choice(writers)
            writer.kill()
            writer.command[-1] = str(chance.randrange(10**6))
            writer.start()
        else:
            workers = driver.workers()
            if not workers:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(workers).kill()
        killed[victim] += 1
        if driver.process.poll() is not None:
            # A query may give up when its workers die too often; its restart is part of the promise.
            (tmp_path / "running").unlink(missing_ok=True)
            driver.start()
    (tmp_path / "stop").touch()
    for writer in writers:
        writer.process.wait(60)
    deadline = time.monotonic() + 300
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline, f"the driver did not catch up (seed {SEED}, kills {killed})"
        if driver.process.poll() is not None and not (tmp_path / "done").exists():
            driver.start()
        time.sleep(0.2)
    _check(store, f"seed {SEED}, kills {dict(killed)}")


def _wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the driver did not come up"
        time.sleep(0.05)


def _changes(store: Store, tunnel: str) -> list[tuple[dict[str, Any], ChangeOp, int]]:
    """Read a tunnel to its end in plain Python."""
    feed = TunnelFeed(store.tunnel(tunnel))
    found: list[tuple[dict[str, Any], ChangeOp, int]] = []
    batch = INITIAL_BATCH
    while (following := feed.latest(batch)) != batch:
        batch = following
        for part in feed.plan(batch):
            if part.max_rows != 0:
                for changes in read_channel(feed.tunnel, batch, part):
                    entries = zip(changes.rows.to_pylist(), changes.ops, changes.versions, strict=True)
                    found += [(row, ChangeOp(op.as_py()), version.as_py()) for row, op, version in entries]
    return found


def _check(store: Store, context: str) -> None:
    changes = _changes(store, "oracle")
    live = [row for row, op, _ in changes if op is not ChangeOp.DELETE]
    assert len(changes) > 1000, context

    windows: dict[str, list[float]] = {}
    for row in live:
        start = datetime.fromtimestamp(row["timestamp"] // 30_000 * 30, UTC)
        cell = windows.setdefault(f"{start:%Y-%m-%d %H:%M:%S}", [0, 0.0])
        cell[0] += 1
        cell[1] += row["price"]
    kept = {row["begin"]: [row["count"], row["totalPrice"]] for row in _rows(store, "windows")}
    assert kept == windows, context

    keys = {(row["UserId"], row["OrderId"]) for row in live}
    assert {(row["UserId"], row["OrderId"]) for row in _rows(store, "first_seen")} == keys, context
    expected = Counter((version, row["UserId"], row["OrderId"]) for row, _, version in changes)
    copies = {(row["version"], row["UserId"], row["OrderId"]) for row in _rows(store, "copy")}
    assert copies == set(expected), context

    # A row that was published twice would stand in the log of an append-only sink as a replacement.
    for table in ("first_seen", "copy"):
        store.create_tunnel(table, "log", kind="Stream", start="earliest")
        operations = Counter(op for _, op, _ in _changes(store, "log"))
        store.drop_tunnel("log")
        doubled = sum(count - 1 for count in expected.values()) if table == "copy" else 0
        assert operations.get(ChangeOp.REPLACE, 0) == doubled, (table, operations, context)
    database = Database(Path(store.url.removeprefix("file://")))
    assert database.query("SELECT count(*) FROM stage") == [(0,)], context
    assert database.query("PRAGMA integrity_check") == [("ok",)], context


def _rows(store: Store, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
    return rows


def test_the_oracle_itself_sees_a_difference(tmp_path: Path) -> None:
    store = actors.create(tmp_path)
    with pytest.raises(AssertionError):
        _check(store, "nothing was streamed")
    assert headrace.open(tmp_path / "store").tables() == store.tables()
