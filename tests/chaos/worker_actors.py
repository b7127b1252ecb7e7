"""The processes of storms around workers: workers of one tunnel, and a writer that splits and merges the table.

``python -m tests.chaos.worker_actors worker DIRECTORY NUMBER`` reads until SIGTERM, and appends each change to the file
``handled``. ``… writer DIRECTORY SEED`` writes until the file ``stop`` exists. The file ``address``, if it exists, has
the URL of the workers' store.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

import headrace
from headrace.errors import HeadraceError
from headrace.workers import TunnelWorker

KEYS = 200
TIMEOUT = 1.5


def create(directory: Path) -> headrace.Store:
    """Create the store, its table, the workers' tunnel, and a tunnel for the check."""
    store = headrace.open(directory / "store", create=True, synchronous="off")
    table = store.create_table("orders", {"id": "long", "value": "long"}, "id")
    table.put([{"id": number, "value": 0} for number in range(KEYS)])
    for name in ("work", "oracle"):
        store.create_tunnel("orders", name, base_channels=3)
    return store


def work(directory: Path) -> None:
    """Read the tunnel, and write down each change when it is processed."""
    address = directory / "address"
    store = (
        headrace.open(address.read_text())
        if address.exists()
        else headrace.open(directory / "store", synchronous="off")
    )
    tunnel = store.tunnel("work")
    # In these tables the last key column identifies a row.
    key = tunnel.table.schema.primary_key[-1]
    worker = tunnel.consume("worker", batch_rows=10, heartbeat_interval=0.2, checkpoint_interval=0.3, timeout=TIMEOUT)
    stop_when_told(worker)
    handled = os.open(directory / "handled", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    (directory / f"running-{os.getpid()}").touch()
    for batch in worker:
        rows, versions = batch.changes.rows.column(key).to_pylist(), batch.changes.versions.to_pylist()
        for row, version in zip(rows, versions, strict=True):
            # A kill can leave an incomplete line, so each line begins with a line break.
            os.write(handled, b"\n" + json.dumps([row, version, os.getpid()]).encode())
        # Slow enough that a worker has prefetched pages when it is killed.
        time.sleep(0.02)


def handled_by_row(directory: Path) -> tuple[dict[int, list[int]], set[int]]:
    """Return the versions of each row's changes that the workers have written down, and the workers' process ids.

    The versions are in the order of processing, without duplicates.
    """
    found: dict[int, dict[int, None]] = defaultdict(dict)
    workers = set()
    written = directory / "handled"
    for line in written.read_text().splitlines() if written.exists() else ():
        try:
            row, version, process = json.loads(line)
        except ValueError:
            continue
        found[row][version] = None
        workers.add(process)
    return {row: list(versions) for row, versions in found.items()}, workers


def stop_when_told(worker: TunnelWorker) -> None:
    """Make SIGTERM end a worker after its current batch."""

    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop()

    signal.signal(signal.SIGTERM, stop)


def write(directory: Path, seed: int) -> None:
    """Put, update and delete rows; split and merge the table."""
    chance = random.Random(seed)
    table = headrace.open(directory / "store", synchronous="off").table("orders")
    while not (directory / "stop").exists():
        rows = [
            {"id": chance.randrange(KEYS), "value": chance.randrange(1000)} for _ in range(chance.choice([1, 5, 40]))
        ]
        action = chance.random()
        if action < 0.6:
            table.put(rows)
        elif action < 0.8:
            table.update(rows)
        elif action < 0.92:
            table.delete([{"id": row["id"]} for row in rows])
        else:
            _reshape(table, chance)
        time.sleep(chance.uniform(0.005, 0.03))


def _reshape(table: headrace.Table, chance: random.Random) -> None:
    partitions = sorted(
        (partition for partition in table.describe().partitions if partition.open), key=lambda p: p.keys.low or ()
    )
    try:
        if len(partitions) < 4:
            table.split(chance.choice(partitions).id)
        else:
            place = chance.randrange(len(partitions) - 1)
            table.merge(partitions[place].id, partitions[place + 1].id)
    except HeadraceError:
        # The partition has too few rows.
        return


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "worker":
        work(where)
    else:
        write(where, int(sys.argv[3]))
