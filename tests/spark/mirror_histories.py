"""Random changes of a table of PostgreSQL and of its columns, while a mirror runs whose batches fail at random.

After each step the copy equals the table, or the mirror has stopped with an error that names the change. `make test`
plays a few; `make chaos` and this command play many:

    python -m tests.spark.mirror_histories --first 0 --count 200
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.ports import Store
from headrace.support import failpoints
from tests.conformance import serving

TYPES = ("int", "real", "varchar(8)", "numeric(6,2)", "text", "smallint")
WIDER = {
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "real": ("double precision",),
    "varchar(8)": ("varchar(20)", "text"),
    "numeric(6,2)": ("numeric(9,2)", "numeric"),
}
POINTS = ("rows-written", "marker-written", "published")
NAMED = re.compile(
    r"may have changed|another column than before|another primary key|was made again|not certain|no primary key|"
    r"needs a primary key|was detached|was truncated|attached with rows|cannot be read|unknown values|wider type|"
    r"in a definition that was not seen|REPLICA IDENTITY"
)


class KilledError(Exception):
    """A failpoint was reached."""


@dataclass
class History:
    """One history.

    Attributes:
        source: the store of the table.
        target: the store of the copy.
        log: what was done.
    """

    seed: int
    spark: SparkSession
    source: Store
    target: Store
    server: psycopg.Connection[Any]
    directory: Path
    log: list[str] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    query: StreamingQuery | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.table = f"t{self.seed}"
        self.names = iter(f"c{number}" for number in range(1000))
        self.failing: tuple[str, int] | None = None

    def run(self, steps: int) -> str | None:
        """Play the history; return the error that has ended the mirror, None if it has followed all changes.

        Raises:
            AssertionError: the copy is another one, or the error does not name a change.
        """
        self.columns = {next(self.names): self.chance.choice(TYPES) for _ in range(3)}
        columns = "".join(f", {name} {kind}" for name, kind in self.columns.items())
        self.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY{columns})")
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
                    return text
                found = list(self.target.table(self.table))
                assert found == list(self.source.table(self.table)), "the copy is another one"
            return None
        finally:
            self.stop()

    def execute(self, statement: str) -> None:
        self.log.append(statement)
        self.server.execute(statement.encode())

    # -- the mirror ---------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Let the mirror process all changes, with failures at some failpoints."""
        if self.chance.random() < 0.4:
            self.failing = self.chance.choice(POINTS), self.chance.randrange(1, 3)
            self.log.append(f"-- fails at {self.failing[0]}")
        if self.chance.random() < 0.2:
            self.stop()
            self.log.append("-- restarts")
        for _ in range(3):
            try:
                if self.query is None:
                    self.query = self.start()
                with killing(self.failing):
                    self.query.processAllAvailable()
            except Exception as error:
                self.stop()
                if "KilledError" not in str(error):
                    raise
            else:
                return
            finally:
                self.failing = None
        raise AssertionError("the mirror does not recover from a failure")

    def start(self) -> StreamingQuery:
        return headrace.mirror(
            self.spark,
            source=self.source.url,
            table=self.table,
            to=self.target.url,
            checkpoint=str(self.directory / self.table),
        ).start()

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

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


class killing:
    """Let a failpoint of the driver raise an error once."""

    def __init__(self, failing: tuple[str, int] | None) -> None:
        self._failing = failing
        self._before: Any = None

    def __enter__(self) -> None:
        if self._failing is None:
            return
        point, after = self._failing
        left = [after]

        def kill() -> None:
            left[0] -= 1
            if left[0] == 0:
                raise KilledError(point)

        self._before = failpoints._count, failpoints._wanted
        failpoints._count, failpoints._wanted = kill, point

    def __exit__(self, *_: object) -> None:
        if self._failing is not None:
            failpoints._count, failpoints._wanted = self._before


def play(spark: SparkSession, seed: int, steps: int) -> str | None:
    """Play the history of a seed; return the error that has ended its mirror."""
    url = serving.postgres_database()
    with tempfile.TemporaryDirectory() as directory, headrace.open(url) as source:
        embedded = Path(directory) / "store"
        target = headrace.open(embedded, create=True) if seed % 2 else headrace.open(serving.postgres_database())
        with target, psycopg.connect(url, autocommit=True) as server:
            history = History(seed, spark, source, target, server, Path(directory))
            try:
                return history.run(steps)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}\n" + ";\n".join(history.log)) from error
            finally:
                for tunnel in source.tunnels():
                    source.drop_tunnel(tunnel.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    spark = headrace.session("mirror histories")
    ended: list[str] = []
    try:
        for seed in range(arguments.first, arguments.first + arguments.count):
            error = play(spark, seed, arguments.steps)
            ended += [error] if error else []
            print(f"seed {seed}: {'followed' if error is None else error.splitlines()[0][:200]}", flush=True)
    finally:
        spark.stop()
        serving.stop()
    print(f"{arguments.count} histories, {len(ended)} ended with an error that names the change")


if __name__ == "__main__":
    main()
