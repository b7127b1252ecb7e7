"""A long run without kills: the memory of each process does not grow, and files are bounded. Run by ``make soak``."""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.chaos import followed_actors, queue_actors
from tests.chaos.storm import Actor

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "600"))
_log = logging.getLogger(__name__)
_EVERY = 2.0
# The accepted increase of a process or a directory between the middle and the end of the run.
_SHARE, _SLACK = 1.15, 24 << 20


def _queues(directory: Path) -> list[Actor]:
    queue_actors.create(directory, retention_seconds=20.0)
    others = ("sweeper",), ("writer", "0"), ("writer", "1")
    return [Actor("queue_actors", directory, *each) for each in (("driver",), *others)]


def _followed(directory: Path) -> list[Actor]:
    followed_actors.create(directory, retention_seconds=60.0)
    return [Actor("followed_actors", directory, *each) for each in (("driver",), ("writer", "1", "0"))]


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("start", [_queues, _followed], ids=["queues", "followed"])
def test_memory_and_files_do_not_grow(
    tmp_path: Path, actors_of: list[Actor], start: Callable[[Path], list[Actor]]
) -> None:
    actors_of += start(tmp_path)
    driver, *others = actors_of
    begin = time.monotonic()
    samples: list[dict[str, int]] = []
    while time.monotonic() - begin < SECONDS:
        time.sleep(_EVERY)
        for actor in actors_of:
            assert actor.process.poll() is None, f"{actor.command[3:]} ended"
        sample: dict[str, int] = {}
        for process in [psutil.Process(driver.process.pid), *psutil.Process(driver.process.pid).children(True)]:
            try:
                kind = "memory of the JVM" if process.name() == "java" else "memory of the driver's Python"
                sample[kind] = sample.get(kind, 0) + process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        for actor in others:
            sample[f"memory of {' '.join(actor.command[3:4] + actor.command[5:])}"] = (
                psutil.Process(actor.process.pid).memory_info().rss
            )
        for name in ("store", "checkpoints"):
            sample[f"files of {name}"] = _size(tmp_path / name)
        samples.append(sample)
    (tmp_path / "stop").touch()
    report = {}
    for what in samples[-1]:
        middle = [sample.get(what, 0) for sample in samples[len(samples) * 3 // 10 : len(samples) * 6 // 10]]
        end = [sample.get(what, 0) for sample in samples[len(samples) * 8 // 10 :]]
        report[what] = (statistics.median(middle), statistics.median(end))
    lines = [f"{what}: {before / 1e6:.1f} MB, later {after / 1e6:.1f} MB" for what, (before, after) in report.items()]
    for line in lines:
        _log.info(line)
    grown = [line for line, (before, after) in zip(lines, report.values(), strict=True)
             if after > before * _SHARE + _SLACK]  # fmt: skip
    assert not grown, "\n".join(grown)


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            # Spark can remove old files during the loop.
            continue
    return total
