"""Java processes that read a table of PostgreSQL on demand, and headrace's worker that reads the same."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

import headrace
from bench.measure import Ratio, Result, seconds
from bench.peers.releases import jars, java
from bench.peers.running import Cost, load
from bench.postgres_server import Server, create_orders, insert_orders

_BATCH_ROWS = 65_536
PROMISES = (
    "Both read at least once and save their positions; a change is in memory, as a row of an Arrow batch or as an "
    "event of the peer, and goes nowhere. Only headrace's streams through Spark make it exactly once. Seconds are from "
    "the start of a reader to the last row; its end is in none. CPU seconds are those of reader and server. "
)
# Flink serializes values of Java's own classes.
_OPEN = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time", "nio")]


@dataclass(frozen=True)
class JavaReader:
    """A process that reads for each line of its input, and writes the seconds until the last row."""

    name: str
    process: subprocess.Popen[str]

    @classmethod
    @contextmanager
    def started(cls, name: str, peer: str, source: Path, directory: Path) -> Iterator[JavaReader]:
        """Compile and start a program.

        Args:
            name: the peer's name in messages.
            peer: the name of its jars; see `jars`.
            source: the program.
            directory: gets the classes.
        """
        classpath = os.pathsep.join([str(directory), *map(str, jars(peer))])
        program = java("jdk.compiler")
        compiler = [program, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", str(directory)]
        subprocess.run([*compiler, "-cp", classpath, str(source)], check=True)
        process = subprocess.Popen(
            [program, "-Xms1g", "-Xmx1g", *_OPEN, "-cp", classpath, source.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield cls(name, process)
        finally:
            process.kill()
            process.wait()

    def read(self, words: Sequence[object]) -> Callable[[], float]:
        """Begin to read; return a function that waits for the last row, and returns the seconds until it."""
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self._seconds

    def _seconds(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended with exit code {self.process.wait()}")
        return float(line)


def port_of(server: Server) -> int:
    return int(str(psycopg.conninfo.conninfo_to_dict(server.url)["port"]))


def consume(url: str, name: str, rows: int) -> float:
    """Read a tunnel by a worker until it has no more rows. Return the seconds from the start to the last row."""
    begin = last = time.perf_counter()
    seen = 0
    with headrace.open(url) as store:
        for batch in store.tunnel(name).consume(batch_rows=_BATCH_ROWS, idle="stop"):
            seen += len(batch)
            last = time.perf_counter()
    assert seen == rows, f"{seen} rows instead of {rows}"
    return last - begin


def fill(store: headrace.Store, session: psycopg.Connection, rows: int, publication: str) -> None:
    """Create a table of orders with rows, and a publication of it."""
    create_orders(store, "orders")
    for first in range(0, rows, 100_000):
        insert_orders(session, "orders", first, min(100_000, rows - first))
    session.execute("VACUUM ANALYZE")
    session.execute(f"CREATE PUBLICATION {publication} FOR TABLE orders".encode())


def consume_base(store: headrace.Store, url: str, name: str, rows: int) -> float:
    """Return the seconds in which a worker reads the rows of the table, with the creation of its tunnel."""
    created = seconds(lambda: store.create_tunnel("orders", name, kind="BaseData"))
    taken = consume(url, name, rows)
    store.drop_tunnel(name)
    return created + taken


def result(
    title: str, rows: int, spent: dict[str, Cost], peer: str, versions: str, forms: dict[str, str], note: str
) -> Result:
    """Return the result of a comparison.

    Args:
        spent: the costs of headrace's ``tunnel``, and of each form of the peer's events.
        forms: a description of each form.
    """
    return Result(
        f"{title}, 4 columns, PostgreSQL on the same cores",
        {
            "versions": versions,
            "load of the machine": load(),
            "headrace, worker of a tunnel, into Arrow": spent["tunnel"].text(rows),
            **{f"{peer}, {form}": spent[name].text(rows) for name, form in forms.items()},
        },
        [
            Ratio(f"worker / {peer}, {form}", spent[name].clock / spent["tunnel"].clock, 5.0)
            for name, form in forms.items()
        ],
        PROMISES + note,
    )
