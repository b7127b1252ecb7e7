"""Processes that open, write, fork, close and exit in random order, and log acknowledged rows.

Run as a program: ``python -m tests.chaos.fork_actors DIRECTORY SEED SEQUENCES``. It imports all modules, opens no
store, and forks one actor after another, each with its own store. Other processes (bystanders) open the same store,
write, checkpoint and close it.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
from headrace.errors import HeadraceError
from headrace.ports import Store
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.embedded.tables import reading

STEPS = 16
DEPTH = 3
# A process that takes longer for one step counts as hanging.
PATIENCE_SECONDS = 45
# The first character of each line of a log.
MARKS = BEGUN, ENDED, TRIED, DONE, RAISED, BROKEN = ">", "<", "?", "+", "!", "#"


def create(directory: Path) -> None:
    """Create the store. The calling process must end afterwards."""
    store = headrace.open(directory, create=True)
    store.create_table("rows", {"id": "string", "n": "long"}, "id")
    store.create_queue("log", {"id": "string"}, partitions=2)
    store.close()


class Log:
    """A file with lines for attempted rows, acknowledged rows, and errors."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, mark: str, text: str) -> None:
        os.write(self._descriptor, f"{mark}{text}\n".encode())


class Actor:
    """A process that does random steps with its handles, some of which it has inherited."""

    def __init__(self, directory: Path, log: Log, seed: int) -> None:
        self.directory = directory
        self.log = log
        self.random = random.Random(seed)
        self.handles: list[Store] = []
        self.threads: list[threading.Thread] = []
        self.scans: list[Iterator[object]] = []
        self.depth = 0
        self.rows = 0

    def act(self) -> None:
        """Do random steps. The last one ends the process."""
        steps: list[Callable[[], None]] = [
            *(self.open, self.close, self.checkpoint, self.scan, self.fork, self.start_thread),
            *(self.write, self.write, self.write),
        ]
        for _ in range(self.random.randrange(1, STEPS)):
            signal.alarm(PATIENCE_SECONDS)
            try:
                self.random.choice(steps)()
            except HeadraceError as error:
                self.log.write(RAISED, str(error).replace("\n", " "))
        for thread in self.threads:
            thread.join()

    def handle(self) -> Store:
        if not self.handles:
            self.open()
        return self.random.choice(self.handles)

    def open(self) -> None:
        self.handles.append(headrace.open(self.directory))

    def close(self) -> None:
        handle = self.handle()
        handle.close()
        if self.random.random() < 0.5:
            self.handles.remove(handle)

    def write(self) -> None:
        handle = self.handle()
        for _ in range(self.random.randrange(1, 8)):
            self.put(handle, "main")

    def put(self, handle: Store, thread: str) -> None:
        self.rows += 1
        row = f"{os.getpid()}-{thread}-{self.rows}"
        if self.rows % 2:
            self.log.write(TRIED, f"table {row}")
            handle.table("rows").put({"id": row, "n": self.rows})
            self.log.write(DONE, f"table {row}")
        else:
            self.log.write(TRIED, f"queue {row}")
            handle.queue("log").append({"id": row})
            self.log.write(DONE, f"queue {row}")

    def start_thread(self) -> None:
        handle, number = self.handle(), len(self.threads)

        def work() -> None:
            try:
                for _ in range(10):
                    self.put(handle, f"thread {number}")
            except HeadraceError as error:
                self.log.write(RAISED, str(error).replace("\n", " "))

        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def scan(self) -> None:
        """Begin a scan, or read the next page of a scan, possibly of one that the parent has begun."""
        if not self.scans or self.random.random() < 0.5:
            self.scans.append(iter(self.handle().table("rows").scan(batch_rows=1)))
        next(self.random.choice(self.scans), None)

    def checkpoint(self) -> None:
        handle = self.handle()
        assert isinstance(handle, EmbeddedStore)
        handle.database.query("PRAGMA wal_checkpoint(PASSIVE)")

    def fork(self) -> None:
        if self.depth == DEPTH:
            return
        seed = self.random.random()
        if os.fork() == 0:
            begin(self.log)
            self.random.seed(seed)
            self.depth += 1
            self.threads = []
            run(self)


def begin(log: Log) -> None:
    """Log the start of this process, and let an alarm end it if a step hangs."""
    signal.alarm(PATIENCE_SECONDS)
    log.write(BEGUN, str(os.getpid()))


def run(actor: Actor) -> None:
    """Act, and end the process, either at once or with the usual clean-up of Python."""
    try:
        actor.act()
        if actor.random.random() < 0.5:
            for handle in actor.handles:
                handle.close()
    except SystemExit:
        # A descendant has inherited its parent's frames.
        raise
    except BaseException:
        actor.log.write(BROKEN, traceback.format_exc().replace("\n", " | "))
    actor.log.write(ENDED, str(os.getpid()))
    if actor.random.random() < 0.5:
        os._exit(0)
    raise SystemExit(0)


def stand_by(directory: Path, log: Log, seed: int, until: int) -> None:
    """Open, write, checkpoint and close until the writing end of a pipe is closed."""
    actor = Actor(directory, log, seed)
    os.set_blocking(until, False)
    while True:
        try:
            if os.read(until, 1) == b"":
                log.write(ENDED, str(os.getpid()))
                os._exit(0)
        except BlockingIOError:
            pass
        signal.alarm(PATIENCE_SECONDS)
        actor.open()
        actor.write()
        if actor.random.random() < 0.5:
            actor.checkpoint()
        actor.handles.pop().close()


def run_sequence(directory: Path, log: Log, seed: int) -> None:
    """Run an actor and bystanders until all of them and their descendants have ended."""
    # All living processes hold the writing end of the first pipe. Closing the second pipe ends the bystanders.
    alive, lives = os.pipe()
    stop, stops = os.pipe()
    bystanders = []
    for number in range(1 + seed % 2):
        bystanders.append(os.fork())
        if bystanders[-1] == 0:
            for descriptor in (alive, lives, stops):
                os.close(descriptor)
            begin(log)
            stand_by(directory, log, seed * 1000 + number, stop)
    if os.fork() == 0:
        for descriptor in (alive, stop, stops):
            os.close(descriptor)
        begin(log)
        run(Actor(directory, log, seed))
    os.close(lives)
    # The read returns when the actor and all its descendants have ended.
    os.read(alive, 1)
    os.close(stops)
    for descriptor in (alive, stop):
        os.close(descriptor)
    for bystander in bystanders:
        status = os.waitstatus_to_exitcode(os.waitpid(bystander, 0)[1])
        if status:
            log.write(BROKEN, f"a bystander ended with {status}")
    status = os.waitstatus_to_exitcode(os.wait()[1])
    if status:
        log.write(BROKEN, f"an actor ended with {status}")


def main() -> None:
    """Run sequences one after another, each with its own store."""
    # An alarm prints where the process hangs before it ends it.
    faulthandler.register(signal.SIGALRM, chain=True)
    root, seed, sequences = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # A scan keeps its transaction open from the first page on.
    reading.READ_AHEAD_BYTES = 1
    for number in range(seed, seed + sequences):
        directory = root / str(number)
        if os.fork() == 0:
            create(directory / "store")
            os._exit(0)
        os.wait()
        run_sequence(directory / "store", Log(directory / "log"), number)


if __name__ == "__main__":
    main()
