"""``python -m tests.chaos.matrix.run`` runs storms until each cell of the matrix has its kills.

It continues where the log ends. ``--minutes`` is the time after which no further storm begins; a storm that is
interrupted is not in the log. Several runs with one log share the cells: ``--lane 0/2`` and ``--lane 1/2``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import psutil

import headrace
from tests.chaos.matrix import log, storming
from tests.chaos.matrix.cells import FAULTS, MOST_KILLS_OF_A_STORM, QUERIES, STORES, VICTIMS, Cell, plan
from tests.chaos.matrix.places import ENVIRONMENT, Servers
from tests.chaos.matrix.storming import Sparks
from tests.postgres_server import major_version
from tests.startup import python_server, spark_archive

MEMORY = Path("/dev/shm")
_NAMES = ", ".join((*VICTIMS, *FAULTS, *QUERIES, *STORES))
KEPT = Path("build") / "storms"
# The log in the documents is complete: another run has a log of its own.
LOG = KEPT / "log.jsonl"


def main() -> int:
    """Run storms, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--lane", default="0/1", help="the number of this run, and of all runs at the same time")
    parser.add_argument("--only", nargs="*", default=[], help=f"of these victims, queries and stores: {_NAMES}")
    parser.add_argument("--seed", type=int, help="repeat the storm of the log with this seed, and do not log it")
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    begin, failed = time.monotonic(), 0
    # A run that is told to end removes its processes and files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    lane, lanes = map(int, arguments.lane.split("/"))
    with ExitStack() as stack:
        root = Path(tempfile.mkdtemp(prefix="headrace-storms-", dir=MEMORY if MEMORY.is_dir() else None))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        _prepare_environment()
        sparks: Sparks | None = None
        if arguments.seed is None:
            storms = _missing(arguments.kills, arguments.log, lane, lanes, set(arguments.only))
        else:
            storms = [(each.cell, each.kills) for each in log.read(arguments.log) if each.seed == arguments.seed]
            assert storms, f"the log {arguments.log} has no storm with the seed {arguments.seed}"
        for cell, kills in storms:
            if time.monotonic() - begin > 60 * arguments.minutes:
                break
            if sparks is None:
                launcher = stack.enter_context(python_server.serving(root))
                servers = Servers(root)
                stack.callback(servers.stop)
                python = _python_server(root)
                stack.callback(_end_children, python)
                sparks = Sparks(root, launcher, python)
                stack.callback(sparks.stop)
            seed = _seed(cell, log.read(arguments.log)) if arguments.seed is None else arguments.seed
            entry = storming.run(cell, seed, kills, servers, sparks, root, _versions)
            if arguments.seed is None:
                log.append(entry, arguments.log)
            _print(entry)
            if not entry.held:
                failed = 1
                _keep(root, seed)
    return failed


def _missing(kills: int, path: Path, lane: int, lanes: int, only: set[str]) -> list[tuple[Cell, int]]:
    """Return the storms that the log does not have, and their numbers of kills."""
    done = log.kills_by_cell(log.read(path))
    wanted = list(plan(kills).items())[lane::lanes]
    storms = []
    for cell, count in wanted:
        kinds = (({*VICTIMS, *FAULTS}, cell.victim), (set(QUERIES), cell.query), (set(STORES), cell.store))
        if any(only & kind and part not in only for kind, part in kinds):
            continue
        left = count - done[cell]
        while left > 0:
            storms.append((cell, min(left, MOST_KILLS_OF_A_STORM)))
            left -= MOST_KILLS_OF_A_STORM
    return storms


def _seed(cell: Cell, entries: list[log.Entry]) -> int:
    """Return a seed that no other storm has: a number of the cell, and that of its storm."""
    return 1000 * number_of(cell) + sum(entry.cell == cell for entry in entries)


def number_of(cell: Cell) -> int:
    """Return a number that the cell keeps when the matrix gets other cells. Those of the first log were smaller."""
    return 1000 + zlib.crc32(" ".join(cell).encode()) % 1_000_000


def _prepare_environment() -> None:
    os.environ.update(ENVIRONMENT)
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY if MEMORY.is_dir() else tempfile.gettempdir())
    os.environ["SPARK_SUBMIT_OPTS"] = spark_archive.options()
    startup = str(Path(spark_archive.__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([startup, *filter(None, [os.environ.get("PYTHONPATH")])])


def _python_server(root: Path) -> int:
    """Return the process id of the server that forks Spark's Python processes."""
    for child in psutil.Process().children():
        if str(root / "python.socket") in child.cmdline():
            return int(child.pid)
    raise LookupError("the server of Python processes does not run")


def _end_children(pid: int) -> None:
    """Kill the Python processes of Spark that have not ended with it."""
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


@cache
def _versions() -> str:
    import pyspark

    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    python = ".".join(map(str, sys.version_info[:3]))
    engine = f"Spark {pyspark.__version__}, Python {python}, PostgreSQL {major_version()}"
    return f"headrace {headrace.__version__} {commit}, {engine}"


def _print(entry: log.Entry) -> None:
    print(  # noqa: T201
        f"{time.strftime('%H:%M:%S')} {' × '.join(entry.cell)}: {entry.kills} kills, {entry.batches} batches, "
        f"{entry.replayed} replayed, {entry.tasks} tasks repeated, {entry.rows} rows, lost {entry.lost}, "
        f"doubled {entry.doubled}, out of order {entry.out_of_order}, {entry.seconds} s, seed {entry.seed}"
        + (f", FAILED: {entry.failed}" if entry.failed else ""),
        flush=True,
    )


def _keep(root: Path, seed: int) -> None:
    """Copy the files of a failed storm."""
    KEPT.mkdir(parents=True, exist_ok=True)
    shutil.copytree(root / f"storm-{seed}", KEPT / str(seed), dirs_exist_ok=True, ignore_dangling_symlinks=True)
    for each in root.glob("*.log"):
        shutil.copy(each, KEPT / str(seed))


if __name__ == "__main__":
    sys.exit(main())
