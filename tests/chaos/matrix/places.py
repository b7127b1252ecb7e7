"""The stores of storms, and the servers behind them, which a storm kills or disconnects."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import psycopg

import headrace
from headrace.ports import Store
from headrace.testing.processes import CONTEXT
from tests.chaos.matrix.faults import follow_clock
from tests.postgres_server import USER, PostgresServer, create_database, drop_database

ENVIRONMENT = {
    "HEADRACE_ACCESS_KEY_ID": "LTAIchaos",
    "HEADRACE_ACCESS_KEY_SECRET": "only for tests",
    "HEADRACE_YT_TOKEN": "only-for-tests",
    "YT_TOKEN": "only-for-tests",
}
CLOCK = "clock"
"""The file of a storm with the seconds by which its clocks differ from the machine's."""
_START_SECONDS = 60


@dataclass(frozen=True)
class Place:
    """The stores of a storm, for its processes.

    Attributes:
        directory: the files of the storm: ``address`` is that of the source, as for `tests.chaos.actors`.
        target: the URL of the store of the results.
        source: the URL of the store of the rows that the query reads. It is the target's, unless that lacks what the
            query needs.
    """

    kind: str
    query: str
    directory: str
    source: str
    target: str

    def open_source(self) -> Store:
        """Open the store that the query reads."""
        return headrace.open(self.source, create=True)

    def open_target(self) -> Store:
        """Open the store that the query writes."""
        return headrace.open(self.target, create=True)

    @property
    def has_queues(self) -> bool:
        """Whether the query reads queues; else it reads tunnels."""
        return self.kind == "ytsaurus" and self.source == self.target

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the query."""
        return Path(self.directory) / "checkpoint"

    def text(self) -> str:
        """Return this value as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Place:
        """Return the value of a JSON text."""
        return cls(**json.loads(text))


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Endpoint:
    """An endpoint of Tablestore or YTsaurus over the embedded stores of a directory."""

    def __init__(self, kind: str, root: Path, clock: Path | None = None) -> None:
        self.kind, self.root, self.port, self._clock = kind, root, free_port(), clock
        self.root.mkdir(parents=True, exist_ok=True)
        self.process: BaseProcess | None = None

    def start(self) -> None:
        """Start the process, and wait until it accepts connections."""
        arguments = ["serve", f"--{self.kind}", str(self.port), "--root", str(self.root)]
        self.process = CONTEXT.Process(target=_serve, args=(arguments, str(self.root.with_suffix(".log")), self._clock))
        self.process.start()
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self.process.is_alive(), self.root.with_suffix(".log").read_text()[-4000:]
            assert time.monotonic() < deadline, f"the endpoint {self.kind} does not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()


def _serve(arguments: list[str], log: str, clock: Path | None) -> None:
    write_output_to(log)
    if clock is not None:
        follow_clock(clock)
    os.environ.update(ENVIRONMENT)
    from headrace.cli.main import main

    sys.argv = ["headrace", *arguments]
    main()


def write_output_to(log: str) -> None:
    """Let this process write its output to a file, and not react to interrupts of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


class Servers:
    """The servers of a run: each starts when a storm needs it, and serves all storms of the run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._endpoints: dict[str, Endpoint] = {}
        self._postgres: PostgresServer | None = None

    def endpoint(self, kind: str) -> Endpoint:
        """Return the endpoint of a kind."""
        if kind not in self._endpoints:
            self._endpoints[kind] = Endpoint(kind, self.root / kind)
            self._endpoints[kind].start()
        return self._endpoints[kind]

    @property
    def postgres(self) -> PostgresServer:
        """The database server."""
        if self._postgres is None:
            self._postgres = PostgresServer.start()
        return self._postgres

    def place(
        self,
        kind: str,
        query: str,
        directory: Path,
        name: str,
        *,
        port: int | None = None,
        endpoint: Endpoint | None = None,
    ) -> Place:
        """Return the stores of a storm, which do not exist yet.

        Args:
            name: a name that no other storm of this run has, of at most 16 letters and digits.
            port: a port of a proxy in front of the server; by default the server's.
            endpoint: the endpoint of the storm's own; by default that of all storms.
        """
        embedded = (directory / "store").as_uri()
        match kind:
            case "embedded":
                source = target = embedded
            case "postgres":
                create_database(self.postgres.port, name)
                source = target = f"postgresql://{USER}@127.0.0.1:{port or self.postgres.port}/{name}"
            case "tablestore":
                server = endpoint or self.endpoint(kind)
                source = target = f"tablestore+http://127.0.0.1:{port or server.port}/{name}"
                # The store that writers split, see `tests.chaos.actors`.
                (directory / "store").symlink_to(server.root / name)
            case _:
                server = endpoint or self.endpoint(kind)
                source = target = f"yt+http://127.0.0.1:{port or server.port}//{name}"
        if kind in ("ytsaurus", "tablestore") and query in ("readAs=table", "mirror"):
            # These need all old or new cells of a row, which tunnels of these stores do not give.
            (directory / "store").unlink(missing_ok=True)
            source = embedded
        (directory / "address").write_text(source)
        return Place(kind, query, str(directory), source, target)

    def port(self, kind: str) -> int:
        """Return the port of the server of a kind of store."""
        return self.postgres.port if kind == "postgres" else self.endpoint(kind).port

    def kill(self, kind: str) -> None:
        """Kill the server of a kind of store, and start it again."""
        if kind == "postgres":
            self.postgres.stop(immediately=True)
            self.postgres.run()
        else:
            self.endpoint(kind).kill()
            self.endpoint(kind).start()

    def forget(self, kind: str, name: str) -> None:
        """Remove what a storm left in a server."""
        if kind == "postgres":
            with suppress(psycopg.Error):
                drop_database(self.postgres.port, name)

    def stop(self) -> None:
        """Stop all servers."""
        for endpoint in self._endpoints.values():
            endpoint.kill()
        if self._postgres is not None:
            self._postgres.remove()
