"""Random changes of a table of PostgreSQL, of its columns and partitions, while workers mirror it without Spark.

Workers are killed at random, and so is the server while one copies. After each step the copy equals the table, or the
worker has stopped with an error that names the change. `make test` plays a few, `make chaos` and this command many:

    python -m tests.interop.mirror_histories --first 0 --count 200
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import headrace
from headrace.errors import HeadraceError, StoreError
from headrace.ports import Store
from headrace.support import failpoints
from headrace.testing.processes import CONTEXT
from tests.postgres_server import USER, PostgresServer, create_database, drop_database

TYPES = ("int", "real", "varchar(8)", "numeric(6,2)", "text", "smallint")
WIDER = {
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "real": ("double precision",),
    "varchar(8)": ("varchar(20)", "text"),
    "numeric(6,2)": ("numeric(9,2)", "numeric"),
}
POINTS = ("rows-written", "marker-written", "published")
_DEADLINE = 120.0
# A killed worker keeps its channels as long.
_TIMEOUT = 1.0
NAMED = re.compile(
    r"may have changed|another column than before|another primary key|was made again|not certain|no primary key|"
    r"needs a primary key|was detached|was truncated|attached with rows|cannot be read|unknown values|wider type|"
    r"in a definition that was not seen|REPLICA IDENTITY"
)


@dataclass
class History:
    """One history of a table and its mirror.

    Attributes:
        source: the store of the table.
        target: the store of the copy.
        log: what was done.
    """

    seed: int
    source: Store
    target: Store
    session: psycopg.Connection[Any]
    log: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.table = f"t{self.seed}"
        self.names = iter(f"c{number}" for number in range(1000))

    def run(self, steps: int) -> str | None:
        """Play the history; return the error that has ended the mirror, None if it has followed all changes.

        Raises:
            AssertionError: the copy is another one, or the error does not name a change.
        """
        self.columns = {next(self.names): self.chance.choice(TYPES) for _ in range(3)}
        columns = "".join(f", {name} {kind}" for name, kind in self.columns.items())
        self.create(columns)
        try:
            for _ in range(steps):
                for _ in range(self.chance.randrange(1, 4)):
                    self.chance.choice(self.actions())()
                # The copy changes its columns with the first rows behind the change.
                self.execute(f"INSERT INTO {self.table} (id) VALUES ({1000 + len(self.log)})")
                try:
                    self.follow()
                except Exception as error:
                    text = str(error)
                    assert NAMED.search(text), f"an error without the change: {text[:3000]}"
                    assert "detached" not in text or any("DETACH" in each for each in self.log), text
                    truncates = re.compile(r"TRUNCATE t\d+_")
                    assert "was truncated" not in text or any(map(truncates.match, self.log)), text
                    return text
                found = list(self.target.table(self.table))
                assert found == list(self.source.table(self.table)), "the copy is another one"
            return None
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n" + ";\n".join(self.log)) from error
        finally:
            self.stop()

    def create(self, columns: str) -> None:
        self.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY{columns})")

    def execute(self, statement: str) -> None:
        self.log.append(statement)
        self.session.execute(statement.encode())

    @abstractmethod
    def follow(self) -> None:
        """Let the mirror process all changes, with failures."""

    def stop(self) -> None:
        """End the mirror."""

    # -- changes ------------------------------------------------------------------------------------------

    def actions(self) -> list[Callable[[], None]]:
        rows = [self.put, self.put, self.put, self.update, self.delete]
        return [*rows, self.add, self.drop, self.rename, self.widen, self.relax, self.truncate, self.identity, self.key]

    def value(self, kind: str) -> str:
        number = self.chance.randrange(-99, 99)
        return f"'v{number}'" if kind.startswith(("varchar", "text")) else f"{number}"

    def put(self) -> None:
        first, count = self.chance.randrange(20), self.chance.randrange(1, 6)
        names = ", ".join(["id", *self.columns])
        values = ", ".join(["i", *map(self.value, self.columns.values())])
        self.execute(
            f"INSERT INTO {self.table} ({names}) SELECT {values} FROM generate_series({first}, {first + count}) i "
            "ON CONFLICT DO NOTHING"
        )

    def update(self) -> None:
        if self.columns:
            name = self.chance.choice(list(self.columns))
            self.execute(f"UPDATE {self.table} SET {name} = {self.value(self.columns[name])} WHERE id % 3 = 0")

    def delete(self) -> None:
        self.execute(f"DELETE FROM {self.table} WHERE id % 4 = {self.chance.randrange(4)}")

    def truncate(self) -> None:
        self.execute(f"TRUNCATE {self.table}")

    def add(self) -> None:
        name, kind = next(self.names), self.chance.choice(TYPES)
        default = self.chance.choice(("", f" DEFAULT {self.value(kind)}", f" NOT NULL DEFAULT {self.value(kind)}"))
        self.execute(f"ALTER TABLE {self.table} ADD {name} {kind}{default}")
        self.columns[name] = kind

    def drop(self) -> None:
        if len(self.columns) > 1:
            name = self.chance.choice(list(self.columns))
            self.execute(f"ALTER TABLE {self.table} DROP {name}")
            del self.columns[name]

    def rename(self) -> None:
        name, new = self.chance.choice(list(self.columns)), next(self.names)
        self.execute(f"ALTER TABLE {self.table} RENAME {name} TO {new}")
        self.columns = {new if each == name else each: kind for each, kind in self.columns.items()}

    def widen(self) -> None:
        name = self.chance.choice(list(self.columns))
        if wider := WIDER.get(self.columns[name]):
            self.columns[name] = self.chance.choice(wider)
            self.execute(f"ALTER TABLE {self.table} ALTER {name} TYPE {self.columns[name]}")

    def relax(self) -> None:
        self.execute(f"ALTER TABLE {self.table} ALTER {self.chance.choice(list(self.columns))} DROP NOT NULL")

    def identity(self) -> None:
        self.execute(f"ALTER TABLE {self.table} REPLICA IDENTITY {self.chance.choice(('FULL', 'DEFAULT'))}")

    def key(self) -> None:
        if self.chance.random() < 0.1:
            self.execute(f"ALTER TABLE {self.table} DROP CONSTRAINT {self.table}_pkey")


@dataclass
class WorkerHistory(History):
    """A history whose mirror is a worker in a process of its own, or in this one.

    Attributes:
        server: the server of both databases, which is killed.
    """

    server: PostgresServer = field(kw_only=True)
    partitions: int = 0
    lost: bool = False

    def create(self, columns: str) -> None:
        if self.chance.random() < 0.6:
            super().create(columns)
            return
        self.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY{columns}) PARTITION BY RANGE (id)")
        self.execute(f"CREATE TABLE {self.table}_0 PARTITION OF {self.table} FOR VALUES FROM (0) TO (10000)")
        self.partitions = 1

    def actions(self) -> list[Callable[[], None]]:
        if not self.partitions:
            return super().actions()
        return [*super().actions(), self.new_partition, self.new_partition, self.attach, self.lose_partition]

    def new_partition(self) -> None:
        self.execute(f"CREATE TABLE {self.table}_{self.partitions} PARTITION OF {self.table} {self._bounds()}")
        self._fill(self.table)

    def attach(self) -> None:
        name = f"{self.table}_{self.partitions}"
        self.execute(f"CREATE TABLE {name} (LIKE {self.table} INCLUDING ALL)")
        if self.chance.random() < 0.2:
            self._fill(name)
            self.partitions -= 1
        self.execute(f"ALTER TABLE {self.table} ATTACH PARTITION {name} {self._bounds()}")
        self.partitions += 1

    def lose_partition(self) -> None:
        """Change a partition without the log, once: the mirror stops."""
        name = f"{self.table}_{self.partitions - 1}"
        if not self.lost and self.partitions > 1 and self.chance.random() < 0.3:
            self.lost = True
            self.execute(self.chance.choice((f"ALTER TABLE {self.table} DETACH PARTITION {name}", f"TRUNCATE {name}")))

    def _bounds(self) -> str:
        return f"FOR VALUES FROM ({self.partitions}0000) TO ({self.partitions}9999)"

    def _fill(self, table: str) -> None:
        self.execute(f"INSERT INTO {table} (id) VALUES ({self.partitions}0000)")
        self.partitions += 1

    def follow(self) -> None:
        killing, crash = self.chance.random() < 0.3, self.chance.random() < 0.15
        if killing:
            point = f"{self.chance.choice(POINTS)}:{self.chance.randrange(1, 3)}"
            self.log.append(f"-- a worker is killed at {point}")
            worker = CONTEXT.Process(target=_copy_until, args=(self.source.url, self.table, self.target.url, point))
            worker.start()
            worker.join(_DEADLINE)
            assert worker.exitcode is not None, "the worker does not end"
        if crash:
            self.log.append("-- the server is killed")
            crashing = threading.Thread(target=self._crash)
            crashing.start()
        try:
            self._copy()
        except StoreError as error:
            # A worker that begins while the server is down ends with this error. Who runs it starts it again.
            if not crash or type(error) is not StoreError:
                raise
            crashing.join()
            self._copy()
        finally:
            if crash:
                crashing.join()
                self.session = psycopg.connect(self.source.url, autocommit=True)

    def _copy(self) -> None:
        headrace.mirror_worker(self.source, self.table, self.target, idle="stop", timeout=_TIMEOUT).run()

    def _crash(self) -> None:
        self.server.stop(immediately=True)
        self.server.run()

    def stop(self) -> None:
        self.session.close()


def _copy_until(source: str, table: str, target: str, point: str) -> None:
    failpoints.arm(point)
    # The next worker has the same error.
    with suppress(HeadraceError):
        headrace.mirror_worker(source, table, target, idle="stop", timeout=_TIMEOUT).run()


def play(server: PostgresServer, seed: int, steps: int) -> str | None:
    """Play the history of a seed; return the error that has ended its mirror.

    Args:
        server: a server that other tests do not use.
    """
    databases = [f"source{seed}", f"target{seed}"]
    url, copy = (f"postgresql://{USER}@127.0.0.1:{server.port}/{name}" for name in databases)
    for name in databases:
        create_database(server.port, name)
    with tempfile.TemporaryDirectory() as directory, headrace.open(url) as source:
        target = headrace.open(Path(directory) / "store", create=True) if seed % 2 else headrace.open(copy)
        history = WorkerHistory(seed, source, target, psycopg.connect(url, autocommit=True), server=server)
        with target:
            try:
                return history.run(steps)
            finally:
                for tunnel in source.tunnels():
                    source.drop_tunnel(tunnel.id)
                for name in databases:
                    drop_database(server.port, name)


def report(play: Callable[[int, int], str | None], description: str | None) -> None:
    """Play as many histories as the arguments of the process say, and print how each ended."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    ended: list[str] = []
    for seed in range(arguments.first, arguments.first + arguments.count):
        error = play(seed, arguments.steps)
        ended += [error] if error else []
        print(f"seed {seed}: {'followed' if error is None else error.splitlines()[0][:200]}", flush=True)
    print(f"{arguments.count} histories, {len(ended)} ended with an error that names the change")


if __name__ == "__main__":
    killed = PostgresServer.start()
    try:
        report(lambda seed, steps: play(killed, seed, steps), __doc__)
    finally:
        killed.remove()
