"""Two tables of PostgreSQL on one slot, as JSON and as Debezium's events, compared with a slot for each table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import headrace
from bench.measure import Ratio, Result, median_of, rate
from bench.postgres_server import commit_orders, create_orders, postgres_server
from bench.postgres_tunnels import Cost, cost
from headrace.batches.feeds.channel_reading import PAGE_ROWS
from headrace.formats.headrace.debezium_events import DebeziumShape
from headrace.model.tables.json_forms import JsonForm
from headrace.ports import Tunnel

_TABLES = ("orders", "returns")
_TRANSACTION_ROWS = 100
_DEBEZIUM = JsonForm(debezium=True)


def postgres_several_tables(directory: Path, scale: float) -> Result:
    """Changes of two tables from one slot, and from two."""
    rows, repeats = int(1_000_000 * scale), 5
    names = ("one slot", "Debezium's events", "two slots")
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as session:
        create_orders(store, *_TABLES)
        for table in _TABLES:
            store.create_tunnel(table, table, kind="Stream")
        store.create_tunnel_of_tables(_TABLES, "both", kind="Stream")
        # The transactions of the two tables take turns.
        step = rows // 20
        for first in range(0, rows // 2, step):
            for table in _TABLES:
                commit_orders(session, table, first, step, size=_TRANSACTION_ROWS)

        def run(name: str) -> float:
            costs[name].append(cost(server, lambda: _read(server.url, name, rows)))
            return costs[name][-1].clock

        clocks = median_of(repeats, *(partial(run, name) for name in names))
    middle = {name: sorted(found, key=lambda one: one.clock)[repeats // 2] for name, found in costs.items()}
    return Result(
        f"PostgreSQL, two tables: {rows:,} inserts, 4 columns, {_TRANSACTION_ROWS} rows a transaction",
        {
            **{name: rate(rows, clock) for name, clock in zip(names, clocks, strict=True)},
            **{f"CPU for a million rows, {name}: client and server": middle[name].cores(rows) for name in names},
        },
        [
            Ratio("JSON from one slot / columns from two slots", clocks[2] / clocks[0], 0.6),
            Ratio(
                "CPU of the server, two slots / one slot", middle["two slots"].server / middle["one slot"].server, 1.2
            ),
        ],
    )


def _read(url: str, name: str, expected: int) -> None:
    """Read all changes as tasks do."""
    with headrace.open(url) as store:
        if name == "two slots":
            found = sum(_read_tunnel(store.tunnel(table), None) for table in _TABLES)
        else:
            events = name != "one slot"
            tunnel = store.tunnel("both").with_json(_DEBEZIUM) if events else store.tunnel("both")
            found = _read_tunnel(tunnel, DebeziumShape(tunnel.origin, "shop") if events else None)
    assert found == expected, f"{found} rows instead of {expected}"


def _read_tunnel(tunnel: Tunnel, shape: DebeziumShape | None) -> int:
    (channel,) = tunnel.channels()
    position, until, rows = channel.committed, tunnel.latest_positions()[channel.id], 0
    while (page := tunnel.read(channel.id, position, PAGE_ROWS, until)).changes.num_rows:
        rows += page.changes.num_rows if shape is None else shape.rows(page.changes).num_rows
        position = page.next
    return rows
