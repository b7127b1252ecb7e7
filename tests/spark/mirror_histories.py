"""The histories of `tests.interop.mirror_histories` under a mirror of Spark whose batches fail at random.

`make test` plays a few; `make chaos` and this command play many:

    python -m tests.spark.mirror_histories --first 0 --count 200
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.support import failpoints
from tests.conformance import serving
from tests.interop.mirror_histories import POINTS, History, report


class KilledError(Exception):
    """A failpoint was reached."""


@dataclass
class SparkHistory(History):
    """A history whose mirror is a query of Spark."""

    spark: SparkSession = field(kw_only=True)
    directory: Path = field(kw_only=True)
    query: StreamingQuery | None = None
    failing: tuple[str, int] | None = None

    def follow(self) -> None:
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
        with target, psycopg.connect(url, autocommit=True) as session:
            history = SparkHistory(seed, source, target, session, spark=spark, directory=Path(directory))
            try:
                return history.run(steps)
            finally:
                for tunnel in source.tunnels():
                    source.drop_tunnel(tunnel.id)


if __name__ == "__main__":
    session = headrace.session("mirror histories")
    try:
        report(lambda seed, steps: play(session, seed, steps), __doc__)
    finally:
        session.stop()
        serving.stop()
