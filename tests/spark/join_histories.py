"""Random changes of two tables on one slot, with typed rows, whose join a query of Spark follows.

The changes are those of `tests.interop.mirror_histories`, with a TRUNCATE of one table or of both, also within a
transaction; one of the tables can have partitions. Transactions of pgbench change both tables. Batches fail at random,
the query starts again, and the server is killed. After each step the target equals the join in PostgreSQL, or the query
has stopped with an error that names the change. `make test` plays a few; `make chaos` and this command play many:

    python -m tests.spark.join_histories --first 0 --count 200
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from tests.interop.mirror_histories import NAMED, CrashingHistory, report, stores
from tests.postgres_server import PostgresServer
from tests.spark.followed_histories import prepare
from tests.spark.following import Following
from tests.spark.mirror_histories import SparkHistory

# Each has a key, its first column, and two further columns.
QUERIES = (
    "SELECT t.id AS k, t.v AS a, u.v AS b FROM t JOIN u ON t.id = u.id",
    "SELECT t.id AS k, u.id AS a, u.v AS b FROM t LEFT JOIN u ON t.v = u.id",
    "SELECT coalesce(u.v, 0) AS k, count(*) AS a, sum(t.v) AS b FROM t JOIN u ON t.v = u.id GROUP BY 1",
)


@dataclass
class JoinHistory(SparkHistory, CrashingHistory):
    """A history of two tables and the query that joins them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tables = {"t": {}, "u": {}}
        self.text = self.chance.choice(QUERIES)
        self.partitioned = self.chance.choice(("t", "u", None))
        self.target.create_table("joined", {"k": "long", "a": "long", "b": "long"}, "k")

    def create(self, partitions: str = "") -> None:
        self.columns["v"] = "bigint"
        if self.table == self.partitioned:
            super().create(" PARTITION BY HASH (id)")
            for number in range(2):
                bounds = f"FOR VALUES WITH (MODULUS 2, REMAINDER {number})"
                self.execute(f"CREATE TABLE {self.table}_{number} PARTITION OF {self.table} {bounds}")
        else:
            super().create(partitions)
        self.source.table(self.table).set_options(pre_images=True)

    def actions(self) -> list[Callable[[], None]]:
        rows = [self.put, self.put, self.put, self.update, self.delete]
        return [*rows, self.truncate, self.truncate_within, self.add, self.relax, self.change_definition]

    def truncate_within(self) -> None:
        """Truncate both tables, in a transaction with changes of rows."""
        put = "INSERT INTO {} (id, v) SELECT i, i % 7 FROM generate_series({}, {}) i ON CONFLICT DO NOTHING"
        first = self.chance.randrange(20)
        before, behind = put.format(self.table, first, first + 9), put.format(self.table, first + 5, first + 12)
        if "v" in self.columns:
            # Without the locks, a transaction of pgbench waits for a row of this one, and TRUNCATE waits for it.
            self.execute(f"LOCK t, u; {before}; TRUNCATE t, u; {behind}")

    def change_definition(self) -> None:
        """Seldom make a change that ends most queries."""
        changes = [self.drop, self.rename, self.widen, self.identity, self.key]
        if self.partitioned:
            changes.append(lambda: self.execute(f"TRUNCATE {self.partitioned}_0"))
        if self.chance.random() < 0.2:
            self.chance.choice(changes)()

    def follow(self) -> None:
        with self.crash() if self.chance.random() < 0.15 else nullcontext() as crash:
            try:
                super().follow()
            except Exception as error:
                # A query that starts while the server is down ends with an error, and so does a batch whose staged
                # rows the server has lost. Who runs it starts it again.
                if crash is None or NAMED.search(str(error)):
                    raise
                crash.join()
                super().follow()

    def start(self) -> StreamingQuery:
        return Following(
            self.spark,
            self.source,
            self.text,
            list(self.tables),
            "joined",
            self.directory,
            self.target,
            together="both",
        ).start()

    def check(self) -> None:
        expected = self.session.execute(f"{self.text} ORDER BY 1".encode()).fetchall()
        found = [tuple(row.values()) for row in self.target.table("joined")]
        assert found == expected, f"the target has {found}, and the tables {expected}"


def play(spark: SparkSession, server: PostgresServer, seed: int, steps: int) -> str | None:
    """Play the history of a seed; return the error that has ended its query.

    Args:
        server: a server that other tests do not use.
    """
    prepare(spark)
    with stores(server, seed) as (source, target), tempfile.TemporaryDirectory() as directory:
        session = psycopg.connect(source.url, autocommit=True)
        history = JoinHistory(seed, source, target, session, spark=spark, directory=Path(directory), server=server)
        try:
            return history.run(steps)
        finally:
            history.session.close()


if __name__ == "__main__":
    session, killed = headrace.session("join histories"), PostgresServer.start()
    try:
        report(lambda seed, steps: play(session, killed, seed, steps), __doc__)
    finally:
        session.stop()
        killed.remove()
