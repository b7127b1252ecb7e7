"""Storms: a driver and its writers are killed at random moments and started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import psutil

from headrace.testing.effort import THOROUGH

KILLS = int(os.environ.get("HEADRACE_CHAOS_KILLS", "4" if THOROUGH else "3"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", str(random.SystemRandom().randrange(10**6))))
# The kills of each kind in ten. A driver needs seconds to restart, a worker does not.
VICTIMS = ["driver"] * 3 + ["worker"] * 4 + ["writer"] * 3


class Actor:
    """A process group that is started again after its death."""

    def __init__(self, module: str, directory: Path, *arguments: str) -> None:
        self.command = [sys.executable, "-m", f"tests.chaos.{module}", arguments[0], str(directory), *arguments[1:]]
        self.log = (directory / f"{'-'.join(arguments)}.log").open("ab")
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen(
            self.command,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        return self.process

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Return the end of the process's log."""
        return Path(self.log.name).read_text()[-4000:]

    def workers(self) -> list[psutil.Process]:
        """The Python worker processes of a driver."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if _is_worker(child)]


class Server(Protocol):
    """The server of a store, as an actor or in another form."""

    def kill(self) -> None: ...

    def start(self) -> object: ...


def _is_worker(process: psutil.Process) -> bool:
    """Return whether a process runs tasks, that is, pyspark's daemon has forked it. The process can end meanwhile."""
    try:
        parent = process.parent()
        return parent is not None and all(
            "pyspark.daemon pyspark.worker" in " ".join(each.cmdline()) for each in (process, parent)
        )
    except psutil.NoSuchProcess:
        return False


def random_victims(chance: random.Random, kills: int = KILLS) -> list[str]:
    """Return the kinds of the next victims: each kind once, if there are as many kills, and more by their shares."""
    kinds = sorted(set(VICTIMS))
    victims = chance.sample(kinds, min(kills, len(kinds))) + chance.choices(VICTIMS, k=max(0, kills - len(kinds)))
    chance.shuffle(victims)
    return victims


def storm(
    directory: Path,
    driver: Actor,
    writers: list[Actor],
    chance: random.Random,
    victims: Iterable[str],
    *,
    server: Server | None = None,
) -> Counter[str]:
    """Kill processes at random moments, then wait until the driver has caught up. Return the number of kills by kind.

    The file ``stop`` ends the writers. The file ``written`` is created after their end, and ends the driver. The driver
    creates the file ``running`` after its start, and the file ``done`` when it has read all rows.

    Args:
        victims: ``driver``, ``writer``, ``server``, or ``worker``, which is a Python process of the driver.
        server: the server of the store, which runs until the end.
    """
    killed: Counter[str] = Counter()
    for victim in victims:
        wait_for(lambda: (directory / "running").exists() or driver.process.poll() is not None, 120)
        time.sleep(chance.uniform(0.1, 2.5))
        if victim == "driver":
            driver.kill()
            (directory / "running").unlink(missing_ok=True)
            driver.start()
        elif victim == "writer":
            writer = chance.choice(writers)
            writer.kill()
            writer.start()
        elif victim == "server":
            assert server is not None
            server.kill()
            server.start()
        else:
            workers = _wait_for_workers(driver)
            if not workers:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(workers).kill()
        killed[victim] += 1
        if driver.process.poll() is not None:
            # A query can fail if its workers die too often. The promise includes its restart.
            (directory / "running").unlink(missing_ok=True)
            driver.start()
    (directory / "stop").touch()
    for writer in writers:
        writer.process.wait(60)
    (directory / "written").touch()
    deadline = time.monotonic() + 300
    while not (directory / "done").exists():
        assert time.monotonic() < deadline, (
            f"the driver did not catch up (seed {SEED}, kills {killed}): {driver.said()}"
        )
        if driver.process.poll() is not None and not (directory / "done").exists():
            driver.start()
        time.sleep(0.2)
    return killed


def _wait_for_workers(driver: Actor, seconds: float = 5) -> list[psutil.Process]:
    """Wait for Python workers of a driver, and return them. Return an empty list if none appears in time."""
    deadline = time.monotonic() + seconds
    while not (workers := driver.workers()) and driver.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return workers


def wait_for_start(directory: Path, driver: Actor) -> None:
    """Wait until a driver runs, or fail with what it has said if it ends before."""
    running = directory / "running"
    wait_for(lambda: running.exists() or driver.process.poll() is not None, 120)
    assert running.exists(), f"the driver did not start (seed {SEED}): {driver.said()}"


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition that another process fulfils, or fail after a time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {seconds} seconds (seed {SEED})"
        time.sleep(0.05)
