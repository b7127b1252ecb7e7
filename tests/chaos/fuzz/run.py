"""``python -m tests.chaos.fuzz.run`` gives random inputs to parsers and endpoints until each has had a number of them.

It continues where the log ends. After ``--minutes``, or at SIGTERM, it logs the inputs that it has given, and ends.
Input number ``n`` of a target depends only on the target's name and ``n``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from tests.chaos.fuzz.endpoints import ENDPOINTS
from tests.chaos.fuzz.files import FILES
from tests.chaos.fuzz.servers import SERVERS
from tests.chaos.fuzz.targets import TARGETS, Target

DOCUMENTED = Path(__file__).parents[3] / "docs" / "logs" / "fuzz.jsonl"
LOG = Path("build") / "fuzz.jsonl"
ALL = {**TARGETS, **FILES, **ENDPOINTS, **SERVERS}
_PART = 100_000
_HANG_SECONDS, _MEMORY = 10, 4 << 30
_ends = threading.Event()


@dataclass
class Part:
    """Inputs of one target that were given one after the other.

    Attributes:
        first: the number of the first input.
        refused: inputs that raised a documented error, or got a response of an error.
        crashes: the numbers of inputs that raised another error, took more than ten seconds, or too much memory.
        slowest: the seconds of the slowest input.
        megabytes: the growth of the process' greatest size during the part.
    """

    target: str
    first: int
    inputs: int = 0
    refused: int = 0
    crashes: tuple[int, ...] = ()
    seconds: float = 0.0
    slowest: float = 0.0
    megabytes: int = 0


class HangError(BaseException):
    """An input took too long."""


def read(path: Path = DOCUMENTED) -> list[Part]:
    """Return the parts of a log."""
    return [Part(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def draw(name: str, number: int) -> object:
    """Return an input."""
    return ALL[name].draw(random.Random(f"{name}:{number}"))


def run(name: str, first: int, inputs: int, deadline: float) -> Part:
    """Give inputs to a target until there are as many, or until the time."""
    target, part = ALL[name], Part(name, first)
    begin, size = time.monotonic(), _size()
    with target.open() as call:
        while part.inputs < inputs and time.monotonic() < deadline and not _ends.is_set():
            _give(target, call, name, first + part.inputs, part)
            part.inputs += 1
    part.seconds, part.megabytes = round(time.monotonic() - begin, 1), _size() - size
    part.slowest = round(part.slowest, 3)
    return part


def _give(target: Target, call: object, name: str, number: int, part: Part) -> None:
    found = draw(name, number)
    signal.setitimer(signal.ITIMER_REAL, _HANG_SECONDS)
    begin = time.perf_counter()
    try:
        if call(found) is False:  # type: ignore[operator]
            part.refused += 1
    except target.errors:
        part.refused += 1
    except (Exception, HangError) as error:
        part.crashes = (*part.crashes, number)
        print(f"{name} {number}: {type(error).__name__}: {str(error)[:300]}\n  {found!r:.600}", flush=True)  # noqa: T201
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    part.slowest = max(part.slowest, time.perf_counter() - begin)


def _size() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _hang(signum: int, frame: FrameType | None) -> None:
    raise HangError


def main() -> int:
    """Give inputs, and return 1 if one crashed a target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--only", nargs="*", default=list(ALL), choices=list(ALL))
    arguments = parser.parse_args()
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _hang)
    signal.signal(signal.SIGTERM, lambda *_: _ends.set())
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    deadline, crashed = time.monotonic() + 60 * arguments.minutes, False
    for name in arguments.only:
        while time.monotonic() < deadline and not _ends.is_set():
            given = sum(part.inputs for part in read(arguments.log) if part.target == name)
            if given >= arguments.inputs:
                break
            part = run(name, given, min(_PART, arguments.inputs - given), deadline)
            with arguments.log.open("a") as file:
                file.write(json.dumps(asdict(part)) + "\n")
            crashed |= bool(part.crashes)
            print(part, flush=True)  # noqa: T201
    return int(crashed)


if __name__ == "__main__":
    sys.exit(main())
