"""One storm: kills at random moments of batches, then the comparison of the result with the expected one."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil

import headrace
from headrace.errors import StoreError
from headrace.testing.processes import CONTEXT
from tests.chaos import actors
from tests.chaos.matrix.cells import Cell
from tests.chaos.matrix.faults import JUMPS, Ballast, Cable, follow_clock, mount_disk, unmount_disk
from tests.chaos.matrix.log import Entry
from tests.chaos.matrix.places import CLOCK, ENVIRONMENT, Endpoint, Place, Servers, write_output_to
from tests.chaos.matrix.queries import PARTITIONS, QUERIES, Outcome
from tests.chaos.matrix.spark_process import SparkProcess

_FIRST_BATCH_SECONDS, _BATCH_SECONDS, _WORKER_SECONDS, _WRITER_SECONDS = 60.0, 3.0, 5.0, 60
_MOST_SECONDS_BETWEEN_KILLS, _WORKING_SECONDS = 0.8, 2.0
_MOST_STARTS = 6


class Sparks:
    """Spark processes: one runs queries, and another one starts meanwhile if the first will be killed."""

    def __init__(self, root: Path, launcher: Path, python_server: int) -> None:
        self._root, self._launcher, self._python_server = root, launcher, python_server
        self._count = 0
        self.current = self._new()
        self._spare: SparkProcess | None = None

    def _new(self) -> SparkProcess:
        self._count += 1
        return SparkProcess(self._root / f"spark-{self._count}.log", self._launcher)

    def prepare(self) -> None:
        """Start the process that follows the current one."""
        if self._spare is None:
            self._spare = self._new()

    def replace(self, *, java: bool = False) -> None:
        """Kill the current driver, or its Java process first, and continue with another one."""
        if java:
            self.current.kill_java()
        else:
            self.current.kill()
        self.current, self._spare = self._spare or self._new(), None

    def workers(self) -> list[psutil.Process]:
        """Return the Python processes that run tasks: Spark's daemons have forked them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            daemons = psutil.Process(self._python_server).children()
            return [worker for daemon in daemons for worker in _children(daemon)]
        return []

    def stop(self) -> None:
        """Kill all."""
        for each in (self.current, self._spare):
            if each is not None:
                each.kill()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children()
        return found
    except psutil.NoSuchProcess:
        return []


def committed(checkpoint: Path, log: str = "commits") -> int:
    """Return the number of batches in a log of a checkpoint."""
    try:
        return max((int(file.name) + 1 for file in (checkpoint / log).iterdir() if file.name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


class RefusedError(Exception):
    """The query of a storm did not start, so the storm has not begun."""


class Storm:
    """The processes of a storm."""

    def __init__(self, cell: Cell, seed: int, servers: Servers, sparks: Sparks, directory: Path) -> None:
        self.cell, self.seed, self.servers, self.sparks, self.directory = cell, seed, servers, sparks, directory
        self.chance = random.Random(seed)
        self.replayed = self.tasks = 0
        self.errors: list[str] = []
        directory.mkdir(parents=True)
        self._ends = contextlib.ExitStack()
        self.place = self._prepared()
        self.query = QUERIES[cell.query]
        self.writers: list[tuple[str, BaseProcess]] = []
        self._starts = self._batches_before = 0
        self._first = True

    def _prepared(self) -> Place:
        """Return the stores of the storm; for a fault with a disk, a clock or a cable of their own."""
        store, name = self.cell.store, f"s{self.seed}"
        port, endpoint, clock = None, None, None
        match self.cell.victim:
            case "cut network":
                self.cable = Cable(lambda: self.servers.port(store))
                self._ends.callback(self.cable.close)
                self.servers.port(store)
                port = self.cable.port
            case "clock jump":
                clock = self.directory / CLOCK
                clock.touch()
            case "full disk":
                disk = self.directory / "disk"
                mount_disk(disk)
                self._ends.callback(unmount_disk, disk)
                self.ballast = Ballast(disk)
                if store == "embedded":
                    (disk / "store").mkdir()
                    (self.directory / "store").symlink_to(disk / "store")
        if store in ("tablestore", "ytsaurus") and self.cell.victim in ("clock jump", "full disk"):
            root = self.directory / ("disk" if self.cell.victim == "full disk" else "") / store
            endpoint = Endpoint(store, root, clock)
            endpoint.start()
            self._ends.callback(endpoint.kill)
        return self.servers.place(store, self.cell.query, self.directory, name, port=port, endpoint=endpoint)

    def run(self, kills: int) -> Outcome:
        """Kill as many times, wait until the query has read all rows, and compare."""
        self.query.create(self.place)
        self.writers = [(name, self._writer(name)) for name in self.query.sources]
        if self.cell.victim in ("driver", "jvm"):
            self.sparks.prepare()
        self._start_query()
        for number in range(kills):
            self._wait()
            self._kill(last=number == kills - 1)
        self._stop_writers()
        self._finish()
        return self.query.check(self.place)

    @property
    def batches(self) -> int:
        """The number of committed batches."""
        return committed(self.place.checkpoint)

    def _wait(self) -> None:
        """Wait until the query has committed a batch since its start, and then for a random time.

        A query whose store dies again and again has time for a batch in between.
        """
        _until(lambda: self.batches > self._batches_before, _FIRST_BATCH_SECONDS if self._first else _BATCH_SECONDS)
        self._first = False
        if self.cell.victim in ("endpoint", "database") or self.cell.is_fault:
            self._batches_before = self.batches
        time.sleep(self.chance.uniform(0, _MOST_SECONDS_BETWEEN_KILLS))

    def _kill(self, *, last: bool) -> None:
        match self.cell.victim:
            case "driver" | "jvm":
                self.sparks.replace(java=self.cell.victim == "jvm")
                if not last:
                    self.sparks.prepare()
                self._start_query()
                return
            case "worker":
                _until(lambda: bool(self.sparks.workers()), _WORKER_SECONDS)
                worker = _working(self.sparks.workers)
                assert worker is not None, "the query has no worker"
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
            case "writer":
                pids = [writer.pid for _, writer in self.writers]
                victim = _working(lambda: [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid or 0)])
                number = pids.index(victim.pid) if victim else self.chance.randrange(len(pids))
                name, writer = self.writers[number]
                writer.kill()
                writer.join()
                self.writers[number] = name, self._writer(name)
            case "cut network":
                self.cable.cut()
                self._pause()
                self.cable.mend()
            case "clock jump":
                # A service accepts requests with a date that is at most 15 minutes off.
                jumps = [jump for jump in JUMPS if self.cell.store != "tablestore" or abs(jump) <= 60]
                (self.directory / CLOCK).write_text(str(self.chance.choice(jumps)))
            case "full disk":
                self.ballast.fill()
                self._pause()
                self.ballast.free()
            case _:
                self.servers.kill(self.cell.store)
        self._restart_ended()

    def _pause(self) -> None:
        time.sleep(self.chance.uniform(0.1, 2))

    def _restart_ended(self) -> None:
        """Start the query again if it has failed, and writers that a fault has ended: the promise includes that."""
        if self.sparks.current.failed():
            self._start_query()
        if self.cell.is_fault:
            self.writers = [(name, each if each.is_alive() else self._writer(name)) for name, each in self.writers]

    def _start_query(self) -> None:
        if self._starts:
            pending = committed(self.place.checkpoint, "offsets") > committed(self.place.checkpoint)
            self.replayed += pending
        self._starts += 1
        self._batches_before, self._first = self.batches, True
        error = self.sparks.current.start(self.place)
        if error and self._starts == 1:
            raise RefusedError(error)
        if error:
            self.errors.append(error)

    def _writer(self, name: str) -> BaseProcess:
        reshapes = 2 if (self.directory / "store").exists() else 0
        log = str(self.directory / f"writer-{name}.log")
        # A restarted writer writes other rows.
        seed = self.chance.randrange(1 << 30)
        process = CONTEXT.Process(target=_write, args=(self.place.text(), name, seed, reshapes, log))
        process.start()
        return process

    def _stop_writers(self) -> None:
        (self.directory / "stop").touch()
        for name, writer in self.writers:
            writer.join(_WRITER_SECONDS)
            if writer.exitcode != 0:
                self.errors.append(f"the writer of {name} ended with {writer.exitcode}")
                writer.kill()

    def _finish(self) -> None:
        """Wait until the query has read all rows. It can have failed at the last kill."""
        for _ in range(_MOST_STARTS):
            error, tasks = self.sparks.current.finish()
            self.tasks += tasks
            if not error:
                return
            if "dead" in error or "no answer" in error:
                self.sparks.replace()
            self._start_query()
        raise AssertionError(f"the query does not come to its end: {error[-2000:]}")

    def end(self, *, keep: bool) -> None:
        """Kill the writers, and delete the files, unless they are of use."""
        for _, writer in self.writers:
            writer.kill()
        self._ends.close()
        if not keep:
            self.servers.forget(self.cell.store, f"s{self.seed}")
            shutil.rmtree(self.directory, ignore_errors=True)


def run(
    cell: Cell, seed: int, kills: int, servers: Servers, sparks: Sparks, root: Path, versions: Callable[[], str]
) -> Entry:
    """Run a storm to its end, and return what happened."""
    begin = time.monotonic()
    storm = Storm(cell, seed, servers, sparks, root / f"storm-{seed}")
    outcome, failed = Outcome(0), ""
    try:
        outcome = storm.run(kills)
    except RefusedError:
        storm.end(keep=False)
        raise
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"[:500]
        # The query may still run.
        sparks.replace()
    if storm.errors:
        failed = failed or storm.errors[0][:500]
    entry = Entry(
        seed=seed,
        **cell._asdict(),
        kills=kills,
        batches=storm.batches,
        replayed=storm.replayed,
        tasks=storm.tasks,
        **vars(outcome),
        seconds=round(time.monotonic() - begin, 1),
        versions=versions(),
        failed=failed,
    )
    storm.end(keep=not entry.held)
    return entry


def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until a condition is true, or for the time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def _working(find: Callable[[], list[psutil.Process]]) -> psutil.Process | None:
    """Return a process that has just been on a processor; if none was for a time, any of them."""
    before: dict[int, str] = {}
    found = None
    deadline = time.monotonic() + _WORKING_SECONDS
    while time.monotonic() < deadline:
        for found in find():
            try:
                used = Path(f"/proc/{found.pid}/schedstat").read_text().split()[0]
            except OSError:
                continue
            if before.setdefault(found.pid, used) != used:
                return found
        time.sleep(0.001)
    return found


def _write(text: str, name: str, seed: int, reshapes: int, log: str) -> None:
    write_output_to(log)
    os.environ.update(ENVIRONMENT)
    place = Place.of(text)
    if (clock := Path(place.directory) / CLOCK).exists():
        follow_clock(clock)
    if not place.has_queues:
        actors.write(Path(place.directory), seed, reshapes, name=name)
        return
    chance = random.Random(seed)
    queue = headrace.open(place.source).queue(name)
    while not (Path(place.directory) / "stop").exists():
        numbers = [chance.randrange(5_000) for _ in range(chance.choice([1, 5, 50, 400]))]
        try:
            queue.append([actors.order(chance, number) for number in numbers], partition=chance.randrange(PARTITIONS))
        except StoreError:
            # The endpoint was killed. The rows were appended or not, and the query reads what is there.
            time.sleep(0.05)
        time.sleep(chance.uniform(0.05, 0.3))
