"""Tablestore's protocol over HTTP: `headrace serve` in another process, and clients in this one."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow as pa

import headrace
from bench.measure import COLUMNS, Ratio, Result, median_of, orders, rate, seconds
from headrace.model.tunnels.values import FINISHED
from headrace.ports import Store, Table, Tunnel

_KEY_ID, _KEY_SECRET = "LTAIbench", "not a secret"
_KEY = ["UserId", "OrderId"]
_PAGE_ROWS = 5000
# The largest number of rows in a BatchWriteRow.
_BATCH_ROWS = 200


@contextmanager
def _served(directory: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the instances of a directory; yield the endpoint and the process."""
    keys = {"HEADRACE_ACCESS_KEY_ID": _KEY_ID, "HEADRACE_ACCESS_KEY_SECRET": _KEY_SECRET}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--tablestore", "0", "--root", str(directory), "--json"],
        env=os.environ | keys,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["endpoint"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _opened(endpoint: str) -> Store:
    return headrace.open(f"tablestore+{endpoint}/shop", access_key_id=_KEY_ID, access_key_secret=_KEY_SECRET)


class _Cost(NamedTuple):
    """Elapsed seconds, and CPU seconds of this process and of the server."""

    wall: float
    here: float
    there: float


def _cost(run: Callable[[], Any], server: psutil.Process) -> _Cost:
    # Keeps the garbage of the preparation out of the measurement.
    gc.collect()
    here, there = _cores(psutil.Process()), _cores(server)
    wall = seconds(run)
    return _Cost(wall, _cores(psutil.Process()) - here, _cores(server) - there)


def _cores(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _drain(store: Store, tunnel_id: str, rows: int) -> None:
    """Read all existing records of a tunnel, page by page like a feed."""
    tunnel: Tunnel = store.tunnel(tunnel_id, columns=COLUMNS)
    (channel,) = tunnel.channels()
    position, count = channel.committed, 0
    while position != FINISHED:
        page = tunnel.read(channel.id, position, _PAGE_ROWS)
        if not page.changes.num_rows:
            break
        assert page.changes.rows.schema.names == list(COLUMNS)
        count += page.changes.num_rows
        position = page.next
    assert count == rows, (count, rows)


def tablestore_tunnel(directory: Path, scale: float) -> Result:
    """Read base data and changes of a tunnel over HTTP into Arrow."""
    rows = max(_PAGE_ROWS, int(500_000 * scale))
    with _served(directory) as (endpoint, server):
        store = _opened(endpoint)
        store.create_table("orders", COLUMNS, _KEY)
        base, stream = _filled(store, directory, rows)
        costs: dict[str, list[_Cost]] = {base: [], stream: []}
        for _ in range(3):
            for tunnel, taken in costs.items():
                taken.append(_cost(lambda tunnel=tunnel: _drain(store, tunnel, rows), server))  # type: ignore[misc]
        store.close()
    figures, ratios = {}, []
    for what, tunnel in (("base data", base), ("changes", stream)):
        cores = statistics.median(cost.here + cost.there for cost in costs[tunnel])
        wall, here, there = (statistics.median(column) for column in zip(*costs[tunnel], strict=True))
        figures[f"{what}, per core of both processes"] = rate(rows, cores)
        figures[f"{what}, by the clock"] = rate(rows, wall)
        figures[f"{what}, per core of the reader"] = rate(rows, here)
        figures[f"{what}, per core of the server"] = rate(rows, there)
        ratios.append(Ratio(f"{what}: thousands of rows per second and core", rows / cores / 1000, 150.0))
    return Result(
        f"Tablestore tunnel over HTTP: {rows:,} rows of 4 columns into Arrow, from `headrace serve`",
        figures,
        ratios,
        "Per core: rows divided by the CPU time of reader and server together.",
    )


def _filled(store: Store, directory: Path, rows: int) -> tuple[str, str]:
    """Put orders directly into the server's store; return a tunnel of the base data, and one of the changes."""
    stream = store.create_tunnel("orders", "changes", "Stream").id
    with headrace.open(directory / "shop") as server_store:
        table = server_store.table("orders")
        for first in range(0, rows, 100_000):
            table.put(_stamped(orders(first, min(100_000, rows - first))))
    return store.create_tunnel("orders", "base", "BaseData", base_channels=1).id, stream


def _stamped(rows: pa.Table) -> pa.Table:
    """Return rows with the time of their writing, like rows that the server has written."""
    times = pa.repeat(pa.scalar(time.time_ns() // 1_000_000), rows.num_rows)
    return rows.append_column(":timestamp", times)


def tablestore_put(directory: Path, scale: float) -> Result:
    """Write rows with BatchWriteRow, compared with the official SDK in the same process, to the same endpoint."""
    rows = max(_BATCH_ROWS, int(20_000 * scale))
    with _served(directory) as (endpoint, server):
        store = _opened(endpoint)
        tables = [store.create_table(name, COLUMNS, _KEY) for name in ("ours", "theirs")]
        sdk_put = _sdk_put(endpoint)
        costs: list[list[_Cost]] = [[], []]
        starts = iter(range(0, 1 << 40, rows))

        def measured(number: int, put: Callable[[pa.Table], object]) -> Callable[[], float]:
            def run() -> float:
                batch = orders(next(starts), rows)
                costs[number].append(_cost(lambda: put(batch), server))
                return costs[number][-1].wall

            return run

        ours, theirs = median_of(3, measured(0, tables[0].put), measured(1, sdk_put))
        for table in tables:
            assert _count(table) == 3 * rows
        store.close()
    here = [statistics.median(cost.here for cost in taken) for taken in costs]
    there = [statistics.median(cost.there for cost in taken) for taken in costs]
    return Result(
        f"Tablestore put: {rows:,} rows of 4 columns through BatchWriteRow, into `headrace serve`",
        {
            "Table.put, by the clock": rate(rows, ours),
            "official SDK's batch_write_row, by the clock": rate(rows, theirs),
            "Table.put, per core of the writer": rate(rows, here[0]),
            "official SDK, per core of the writer": rate(rows, here[1]),
            "Table.put, per core of the server": rate(rows, there[0]),
            "official SDK, per core of the server": rate(rows, there[1]),
        },
        [Ratio("put / official SDK, by the clock", theirs / ours, 2.0)],
        f"Both send {_BATCH_ROWS} rows in a request from one process, to the same server on the same machine. The SDK "
        "gets Python values, made from the same Arrow table, and sends one request after the other. It encodes with "
        f"its {_sdk_encoder()}.",
    )


def _count(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan(columns=_KEY))


def _sdk_encoder() -> str:
    from tablestore import encoder

    return (
        "extension in C++"
        if encoder.NATIVE_ENCODER_AVAILABLE
        else "code in Python, because its extension does not load"
    )


def _sdk_put(endpoint: str) -> Callable[[pa.Table], None]:
    """Return a function that puts rows with the official SDK: lists of 200 items."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tablestore as sdk

        client = sdk.OTSClient(endpoint, _KEY_ID, _KEY_SECRET, "shop")
    free = sdk.Condition(sdk.RowExistenceExpectation.IGNORE)

    def put(rows: pa.Table) -> None:
        for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
            items = [
                sdk.PutRowItem(sdk.Row([(name, row.pop(name)) for name in _KEY], list(row.items())), free)
                for row in batch.to_pylist()
            ]
            request = sdk.BatchWriteRowRequest()
            request.add(sdk.TableInBatchWriteRowItem("theirs", items))
            assert client.batch_write_row(request).is_all_succeed()

    return put
