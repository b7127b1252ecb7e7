"""Static tables in master transactions, compared with a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, rows_of, start

SNAPSHOT, SHARED, EXCLUSIVE = "snapshot", "shared", "exclusive"
_homes = itertools.count()


class Served:
    """A cluster that can be restarted during an example."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.cluster = Cluster(root)

    def restart(self) -> None:
        self.cluster.close()
        self.cluster = Cluster(self._root)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("cluster"))
    yield served
    served.cluster.close()


# -- the model ------------------------------------------------------------------------------------------------------


class Impossible(Exception):
    """There is no such table, its name is taken, or a lock prevents the step."""


class Table:
    """A table, or for locks the directory of all tables."""


@dataclass
class Rows:
    """A transaction's version of a table: unchanged (``same``), with rows ``appended``, or ``replaced``."""

    mode: str
    base: list[int]
    added: list[int] = field(default_factory=list)

    @property
    def all(self) -> list[int]:
        return self.base + self.added


@dataclass
class Lock:
    tx: Tx
    table: Table
    mode: str
    key: str


@dataclass(eq=False)
class Tx:
    """A transaction; the one without a parent is the committed state."""

    id: str | None
    parent: Tx | None
    names: dict[str, Table | None] = field(default_factory=dict)
    rows: dict[Table, Rows] = field(default_factory=dict)

    @property
    def chain(self) -> list[Tx]:
        return [self, *(self.parent.chain if self.parent else [])]

    def table(self, name: str) -> Table | None:
        return next((tx.names[name] for tx in self.chain if name in tx.names), None)

    def seen(self, table: Table) -> list[int]:
        return next((tx.rows[table].all for tx in self.chain if table in tx.rows), [])


class Model:
    def __init__(self) -> None:
        self.trunk = Tx(None, None)
        self.open = [self.trunk]
        self.locks: list[Lock] = []
        self.directory = Table()

    def lock(self, tx: Tx, table: Table, mode: str, key: str = "") -> None:
        for held in self.locks:
            if held.table is table and self._conflict(held, tx, mode, key):
                raise Impossible
        if tx is self.trunk:
            return
        self.locks.append(Lock(tx, table, mode, key))
        own = tx.rows.get(table)
        if table is self.directory or (own is not None and (own.mode == "replaced" or mode != EXCLUSIVE)):
            return
        assert tx.parent is not None
        tx.rows[table] = Rows(own.mode if own else "same", list(tx.parent.seen(table)), own.added if own else [])

    def _conflict(self, held: Lock, tx: Tx, mode: str, key: str) -> bool:
        if held.tx is tx:
            return (held.mode == SNAPSHOT) != (mode == SNAPSHOT)
        if held.tx in tx.chain:
            return held.mode == SNAPSHOT and mode != SNAPSHOT
        if SNAPSHOT in (held.mode, mode):
            return held.mode != SNAPSHOT and tx in held.tx.chain and tx is not self.trunk
        return EXCLUSIVE in (held.mode, mode) or (key != "" and key == held.key)

    def need(self, tx: Tx, name: str) -> Table:
        table = tx.table(name)
        if table is None:
            raise Impossible
        return table

    def name(self, tx: Tx, name: str, table: Table | None) -> None:
        self.lock(tx, self.directory, SHARED, name)
        tx.names[name] = table

    def create(self, tx: Tx, name: str, rows: list[int]) -> None:
        if tx.table(name) is not None:
            raise Impossible
        table = Table()
        self.name(tx, name, table)
        tx.rows[table] = Rows("replaced", [], list(rows))
        self.lock(tx, table, EXCLUSIVE)

    def write(self, tx: Tx, name: str, rows: list[int], *, append: bool) -> None:
        table = tx.table(name)
        if table is None:
            self.create(tx, name, rows)
            return
        self.lock(tx, table, SHARED if append else EXCLUSIVE)
        own = tx.rows.setdefault(table, Rows("replaced", []))
        if not append:
            tx.rows[table] = Rows("replaced", [], rows)
        else:
            mode = "replaced" if own.mode == "replaced" else "appended"
            tx.rows[table] = Rows(mode, own.base, own.added + rows)

    def remove(self, tx: Tx, name: str) -> None:
        self.lock(tx, self.need(tx, name), EXCLUSIVE)
        self.name(tx, name, None)

    def move(self, tx: Tx, source: str, target: str) -> None:
        table = self.need(tx, source)
        if tx.table(target) is not None:
            raise Impossible
        self.lock(tx, table, EXCLUSIVE)
        self.name(tx, source, None)
        self.name(tx, target, table)

    def end(self, tx: Tx, *, committed: bool) -> None:
        for other in [each for each in self.open if each.parent is tx]:
            self.end(other, committed=False)
        parent = tx.parent
        assert parent is not None
        self.open.remove(tx)
        own = [lock for lock in self.locks if lock.tx is tx]
        self.locks = [lock for lock in self.locks if lock.tx is not tx]
        if not committed:
            return
        kept = {lock.table for lock in own if lock.mode == SNAPSHOT}
        for table, rows in tx.rows.items():
            if table in kept or rows.mode == "same":
                continue
            if rows.mode == "replaced":
                parent.rows[table] = rows
                continue
            below = parent.rows.get(table) or Rows("same", parent.seen(table))
            mode = "replaced" if below.mode == "replaced" else "appended"
            parent.rows[table] = Rows(mode, below.base, below.added + rows.added)
        parent.names |= tx.names
        if parent is not self.trunk:
            self.locks += [Lock(parent, lock.table, lock.mode, lock.key) for lock in own if lock.mode != SNAPSHOT]


# -- the steps --------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abc")
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES),
    st.tuples(st.just("append"), NAMES),
    st.tuples(st.just("append"), NAMES),
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.sampled_from(["move", "copy"]), NAMES, NAMES),
    st.tuples(st.just("lock"), NAMES, st.sampled_from([SNAPSHOT, SHARED, EXCLUSIVE])),
    st.tuples(st.sampled_from(["start", "commit", "commit", "abort", "sweep"])),
)


@settings(max_examples=thorough(60), deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), STEPS), min_size=10, max_size=30),
    restarts=st.sets(st.integers(0, 90), max_size=1),
)
def test_contents_in_transactions_equal_the_model(
    served: Served, steps: list[tuple[int, tuple[str, ...]]], restarts: set[int]
) -> None:
    clear(served.cluster)
    home, model = f"//home/{next(_homes)}", Model()
    call(served.cluster, "create", type="map_node", path=home)
    for name in "ab":
        both(served.cluster, home, model, model.trunk, ("write", name), -ord(name))
    for _ in range(2):
        begin(served.cluster, model, model.trunk)
    for number, (place, step) in enumerate(steps):
        if number in restarts:
            served.restart()
        tx = model.open[place % len(model.open)]
        match step:
            case ("start",):
                begin(served.cluster, model, tx)
            case ("sweep",):
                served.cluster.contents.sweep(1 << 60)
            case ("commit" | "abort",):
                if tx.id is not None:
                    (commit if step[0] == "commit" else abort)(served.cluster, tx.id)
                    model.end(tx, committed=step[0] == "commit")
            case _:
                both(served.cluster, home, model, tx, step, number)
        for other in {tx if tx in model.open else model.trunk, model.open[-1]}:
            compare(served.cluster, home, other)
    for tx in model.open:
        compare(served.cluster, home, tx)
    for tx in [each for each in model.open if each.parent is model.trunk]:
        assert tx.id is not None
        abort(served.cluster, tx.id)
    call(served.cluster, "remove", path=home, recursive=True)
    served.cluster.contents.sweep(1 << 60)
    for table in ("yt_static_piece", "yt_part_list", "yt_list_garbage", "yt_lock", "yt_transaction"):
        assert served.cluster.database.query(f"SELECT count(*) FROM {table}") == [(0,)], table


def clear(cluster: Cluster) -> None:
    """Remove the tables of a failed example."""
    for transaction in cluster.transactions.all():
        if not transaction.parent:
            abort(cluster, transaction.id)
    call(cluster, "remove", path="//home/*")
    cluster.contents.sweep(1 << 60)


def begin(cluster: Cluster, model: Model, parent: Tx) -> None:
    model.open.append(Tx(start(cluster, parent.id), parent))


def both(cluster: Cluster, home: str, model: Model, tx: Tx, step: tuple[str, ...], number: int) -> None:
    """Take a step in the cluster and the model, or check that it is impossible in both."""
    what, name, *more = step
    path = f"{home}/{name}"
    rows = [number, number + 1000][: 1 + number % 2]
    there = possible(model, tx, what, name, more, rows)
    given: list[Any] = [[{"a": row} for row in rows]] if what in ("write", "append") else []
    command, parameters = {
        "write": ("write_table", {"path": path}),
        "append": ("write_table", {"path": f"<append=%true>{path}"}),
        "create": ("create", {"path": path, "type": "table"}),
        "remove": ("remove", {"path": path}),
        "lock": ("lock", {"path": path, "mode": (more or [""])[0]}),
        "move": ("move", {"source_path": path, "destination_path": f"{home}/{(more or [''])[0]}"}),
        "copy": ("copy", {"source_path": path, "destination_path": f"{home}/{(more or [''])[0]}"}),
    }[what]
    refused = None
    try:
        call(cluster, command, *given, **parameters, transaction_id=tx.id)
    except YtError as error:
        refused = error
    assert (refused is None) == there, f"{step} in {tx.id}: {refused}"


def possible(model: Model, tx: Tx, what: str, name: str, more: list[str], rows: list[int]) -> bool:
    """Take a step in the model, unless it is impossible."""
    before = list(model.locks), dict(tx.names), dict(tx.rows)
    try:
        match what:
            case "write" | "append":
                model.write(tx, name, rows, append=what == "append")
            case "create":
                model.create(tx, name, [])
            case "remove":
                model.remove(tx, name)
            case "move":
                model.move(tx, name, more[0])
            case "copy":
                model.create(tx, more[0], tx.seen(model.need(tx, name)))
            case _:
                if tx is model.trunk:
                    return False
                model.lock(tx, model.need(tx, name), more[0])
    except Impossible:
        model.locks, tx.names, tx.rows = before
        return False
    return True


def compare(cluster: Cluster, home: str, tx: Tx) -> None:
    """Check that a transaction sees the same tables in the cluster and the model."""
    wanted = {name: tx.seen(table) for name in "abc" if (table := tx.table(name)) is not None}
    names = call(cluster, "list", path=home, transaction_id=tx.id).value["value"]
    assert sorted(names) == sorted(wanted)
    for name, rows in wanted.items():
        path = f"{home}/{name}"
        assert [row["a"] for row in rows_of(cluster, path, tx.id)] == rows
        count = call(cluster, "get", path=f"{path}/@row_count", transaction_id=tx.id).value["value"]
        assert count == len(rows)
