"""Random changes of a table of PostgreSQL, of its columns and partitions, while workers mirror it without Spark.

Workers are killed at random, and so is the server while one copies. In half of the histories pgbench changes rows
meanwhile. After each step the copy equals the table, or the worker has stopped with an error that names the change.
`make test` plays a few, `make chaos` and this command many:

    python -m tests.interop.mirror_histories --first 0 --count 200
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

import headrace
from headrace.errors import HeadraceError, StoreError
from headrace.ports import Store
from headrace.support import failpoints
from headrace.testing.processes import CONTEXT
from headrace.testing.queue_reading import wait_until
from tests.postgres_server import USER, PostgresServer, client_program, create_database, drop_database

TYPES = ("int", "real", "varchar(8)", "numeric(6,2)", "text", "smallint")
WIDER = {
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "real": ("double precision",),
    "varchar(8)": ("varchar(20)", "text"),
    "numeric(6,2)": ("numeric(9,2)", "numeric"),
}
POINTS = ("rows-written", "marker-written", "published")
KILLED = "-- the server is killed"
_DEADLINE = 120.0
# A killed worker keeps its channels as long.
_TIMEOUT = 1.0
NAMED = re.compile(
    r"may have changed|another column than before|another primary key|was made again|not certain|no primary key|"
    r"needs a primary key|was detached|was truncated|attached with rows|cannot be read|unknown values|wider type|"
    r"in a definition that was not seen|REPLICA IDENTITY|is another one than when the query was started|"
    r"does not keep pre-images"
)
# A transaction of pgbench: changes of rows of a table, one of them in a column that it has at the time.
_TURN = """
CREATE SEQUENCE turns;
CREATE FUNCTION turn(changed regclass, first int, value int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    PERFORM nextval('turns');
    SELECT attname INTO name FROM pg_attribute
        WHERE attrelid = changed AND attnum > 1 AND NOT attisdropped ORDER BY random() LIMIT 1;
    EXECUTE format('INSERT INTO %s (id, %I) SELECT i, %L FROM generate_series($1, $1 + 3) i ON CONFLICT DO NOTHING',
        changed, name, value) USING first;
    EXECUTE format('UPDATE %s SET %I = %L WHERE id = $1', changed, name, value) USING first;
    EXECUTE format('DELETE FROM %s WHERE id = $1 + 2', changed) USING first;
EXCEPTION WHEN undefined_column OR object_not_in_prerequisite_state THEN
    -- The column, or the primary key, was dropped meanwhile.
END $$;
"""
_SCRIPT = "\\set first random(0, 40)\n\\set value random(-99, 99)\nBEGIN;\n{turns}COMMIT;\n"
# About a second: a few changes of columns, and then some batches.
_LOAD = ("--no-vacuum", "--client=2", "--transactions=20", "--rate=40", "--file=-")


@dataclass
class History:
    """One history of a table and its mirror, or of several tables.

    Attributes:
        source: the store of the tables.
        target: the store of the copy.
        log: what was done.
        tables: the tables → their columns without the key → types.
        table: the table that changes.
        load: pgbench, which changes rows meanwhile; None in half of the histories, and between their steps.
    """

    seed: int
    source: Store
    target: Store
    session: psycopg.Connection[Any]
    log: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    table: str = ""
    load: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.table = f"t{self.seed}"
        self.tables = {self.table: {}}
        self.busy = self.seed % 4 in (0, 3)
        self.names = iter(f"c{number}" for number in range(1000))

    @property
    def columns(self) -> dict[str, str]:
        return self.tables[self.table]

    def run(self, steps: int) -> str | None:
        """Play the history; return the error that has ended the mirror, None if it has followed all changes.

        Raises:
            AssertionError: the copy is another one, or the error does not name a change.
        """
        self.session.execute(_TURN)
        for table in self.tables:
            self.table = table
            self.create()
        try:
            for _ in range(steps):
                with self.changing_rows():
                    for _ in range(self.chance.randrange(1, 4)):
                        self.table = self.chance.choice(list(self.tables))
                        self.chance.choice(self.actions())()
                        self.await_turn()
                    if self.busy and (error := self.ended()):
                        return error
                for table in self.tables:
                    # The copy changes its columns with the first rows behind the change.
                    self.execute(f"INSERT INTO {table} (id) VALUES ({1000 + len(self.log)})")
                if error := self.ended():
                    return error
                self.check()
            return None
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n" + ";\n".join(self.log)) from error
        finally:
            self.stop()

    def create(self, partitions: str = "") -> None:
        """Create the table.

        Args:
            partitions: the end of the statement.
        """
        self.columns.update({next(self.names): self.chance.choice(TYPES) for _ in range(3)})
        columns = "".join(f", {name} {kind}" for name, kind in self.columns.items())
        self.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY{columns}){partitions}")

    def execute(self, statement: str) -> None:
        self.log.append(statement)
        # The server refuses updates and deletes of rows without a key.
        with suppress(psycopg.errors.ObjectNotInPrerequisiteState):
            self.session.execute(statement.encode())

    def ended(self) -> str | None:
        """Follow all changes; return the error that has ended the mirror, if it names a change."""
        try:
            self.follow()
        except Exception as error:
            text = str(error)
            assert NAMED.search(text), f"an error without the change: {text[:3000]}"
            assert "detached" not in text or any("DETACH" in each for each in self.log), text
            truncates = re.compile(r"TRUNCATE \w+_")
            assert "was truncated" not in text or any(map(truncates.match, self.log)), text
            return text
        return None

    def check(self) -> None:
        """Compare the copy with the table."""
        assert list(self.target.table(self.table)) == list(self.source.table(self.table)), "the copy is another one"

    @contextmanager
    def changing_rows(self) -> Iterator[None]:
        """Let pgbench change rows meanwhile, in some histories."""
        if not self.busy:
            yield
            return
        begin = len(self.log)
        self.log.append("-- pgbench begins")
        turns = "".join(f"SELECT turn('{table}', :first, :value);\n" for table in self.tables)
        command = [str(client_program("pgbench")), *_LOAD, self.source.url]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as self.load:
            assert self.load.stdin is not None
            self.load.stdin.write(_SCRIPT.format(turns=turns))
            self.load.stdin.close()
            self.await_turn()
            yield
            assert self.load.stdout is not None
            output = self.load.stdout.read()
        # It ends with its connections.
        assert self.load.returncode == 0 or KILLED in self.log[begin:], output
        self.load = None

    def await_turn(self) -> None:
        """Wait until pgbench, while it runs, has begun another transaction."""
        if (load := self.load) is not None:
            before = self._turn()
            wait_until(lambda: load.poll() is not None or self._turn() != before)

    def _turn(self) -> object:
        return self.session.execute("SELECT last_value, is_called FROM turns").fetchone()

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
        self.tables[self.table] = {new if each == name else each: kind for each, kind in self.columns.items()}

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
            self.execute(f"ALTER TABLE {self.table} DROP CONSTRAINT IF EXISTS {self.table}_pkey")


@dataclass
class CrashingHistory(History):
    """A history on a server that is killed.

    Attributes:
        server: the server of both databases.
    """

    server: PostgresServer = field(kw_only=True)

    @contextmanager
    def crash(self) -> Iterator[threading.Thread]:
        """Kill the server meanwhile, and start it again."""
        self.log.append(KILLED)
        crash = threading.Thread(target=self._crash)
        crash.start()
        try:
            yield crash
        finally:
            crash.join()
            self.session.close()
            self.session = psycopg.connect(self.source.url, autocommit=True)

    def _crash(self) -> None:
        self.server.stop(immediately=True)
        self.server.run()


@dataclass
class WorkerHistory(CrashingHistory):
    """A history whose mirror is a worker in a process of its own, or in this one.

    Attributes:
        partitions: the number of partitions that were made; 0 for an ordinary table.
        lost: whether rows have changed without the log.
    """

    partitions: int = 0
    lost: bool = False

    def create(self, partitions: str = "") -> None:
        if self.chance.random() < 0.6:
            super().create(partitions)
            return
        super().create(" PARTITION BY RANGE (id)")
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
        if not self.lost and self.partitions > 1 and self.chance.random() < 0.3:
            self.lost = True
            name = f"{self.table}_{self.partitions - 1}"
            changes = [f"TRUNCATE {name}", f"ALTER TABLE {self.table} DETACH PARTITION {name}"]
            self.execute(self.chance.choice(changes))

    def _bounds(self) -> str:
        return f"FOR VALUES FROM ({self.partitions}0000) TO ({self.partitions}9999)"

    def _fill(self, table: str) -> None:
        self.execute(f"INSERT INTO {table} (id) VALUES ({self.partitions}0000)")
        self.partitions += 1

    def follow(self) -> None:
        killing, crashing = self.chance.random() < 0.3, self.chance.random() < 0.15
        if killing:
            point = f"{self.chance.choice(POINTS)}:{self.chance.randrange(1, 3)}"
            self.log.append(f"-- a worker is killed at {point}")
            worker = CONTEXT.Process(target=_copy_until, args=(self.source.url, self.table, self.target.url, point))
            worker.start()
            worker.join(_DEADLINE)
            assert worker.exitcode is not None, "the worker does not end"
        with self.crash() if crashing else nullcontext() as crash:
            try:
                self._copy()
            except StoreError as error:
                # A worker that begins while the server is down ends with this error. Who runs it starts it again.
                if crash is None or type(error) is not StoreError:
                    raise
                crash.join()
                self._copy()

    def _copy(self) -> None:
        headrace.mirror_worker(self.source, self.table, self.target, idle="stop", timeout=_TIMEOUT).run()


def _copy_until(source: str, table: str, target: str, point: str) -> None:
    failpoints.arm(point)
    # The next worker has the same error.
    with suppress(HeadraceError):
        headrace.mirror_worker(source, table, target, idle="stop", timeout=_TIMEOUT).run()


@contextmanager
def stores(server: PostgresServer, seed: int) -> Iterator[tuple[Store, Store]]:
    """Create the stores of a history: a database, and another one or an embedded store for the copy."""
    databases = [f"source{seed}", f"target{seed}"]
    url, copy = (f"postgresql://{USER}@127.0.0.1:{server.port}/{name}" for name in databases)
    for name in databases:
        create_database(server.port, name)
    with (
        tempfile.TemporaryDirectory() as directory,
        headrace.open(url) as source,
        headrace.open(Path(directory) / "store", create=True) if seed % 2 else headrace.open(copy) as target,
    ):
        try:
            yield source, target
        finally:
            for tunnel in source.tunnels():
                source.drop_tunnel(tunnel.id)
            for name in databases:
                drop_database(server.port, name)


def play(server: PostgresServer, seed: int, steps: int) -> str | None:
    """Play the history of a seed; return the error that has ended its mirror.

    Args:
        server: a server that other tests do not use.
    """
    with stores(server, seed) as (source, target):
        history = WorkerHistory(seed, source, target, psycopg.connect(source.url, autocommit=True), server=server)
        try:
            return history.run(steps)
        finally:
            history.session.close()


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
