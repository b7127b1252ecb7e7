"""The order of test files: long ones first, so that no test process works alone at the end.

`make test` gives whole files to three processes in the order of the collection (``--dist=loadfile``, and
``--no-loadscope-reorder``, without which xdist sorts files by their number of tests). Distribution by single tests
(``worksteal``) would balance better but make the fixtures of a file, such as its server, in each process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SUITE = TESTS.parent / "src" / "headrace" / "testing" / "suite"
DURATIONS = TESTS / "durations.json"
# Files of these folders start processes. A new file counts as so long until its duration is recorded.
_UNRECORDED = {"chaos": 30.0, "spark": 20.0}
_SHORTEST_RECORDED = 2.0


def name_of(path: Path) -> str:
    """Return the name of a test file in the table of durations."""
    folder = SUITE.parent if path.is_relative_to(SUITE) else TESTS
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def expected_seconds(name: str, recorded: dict[str, float]) -> float:
    """Return how long a test file is expected to take."""
    return recorded.get(name, _UNRECORDED.get(name.partition("/")[0], 0.0))


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the recorded durations of their files; equally long files keep their random order."""
    recorded: dict[str, float] = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: expected_seconds(name_of(item.path), recorded), reverse=True)


def record(reports: Iterable[pytest.TestReport], root: Path) -> None:
    """Write the durations of the files that took long; those of files that did not run stay."""
    seconds: Counter[str] = Counter()
    for report in reports:
        # `location` would name hypothesis for tests of its state machines.
        seconds[name_of(root / report.nodeid.partition("::")[0])] += report.duration  # type: ignore[assignment]
    recorded: dict[str, float] = json.loads(DURATIONS.read_text())
    exist = {name for name in recorded for folder in (TESTS, SUITE.parent) if (folder / name).is_file()}
    others = {name: long for name, long in recorded.items() if name in exist - seconds.keys()}
    measured = {name: round(each, 1) for name, each in seconds.items() if each >= _SHORTEST_RECORDED}
    longest = sorted((others | measured).items(), key=lambda entry: -entry[1])
    DURATIONS.write_text(json.dumps(dict(longest), indent=1) + "\n")
