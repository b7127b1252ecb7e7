"""Long test files begin first, whatever the random order: the last one to begin is what the other process waits for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import DURATIONS, SUITE, TESTS, expected_seconds, longest_first, name_of


def item(name: str) -> Any:
    return SimpleNamespace(path=(SUITE.parent if name.startswith("suite/") else TESTS) / name)


def test_long_files_begin_first_and_others_keep_their_random_order() -> None:
    recorded = json.loads(DURATIONS.read_text())
    first, second, *_ = sorted(recorded, key=lambda name: -recorded[name])
    names = ["unit/test_b.py", second, "unit/test_a.py", first, "unit/test_b.py"]
    items: list[pytest.Item] = [item(name) for name in names]
    longest_first(items)
    found = [name_of(each.path) for each in items]
    assert found == [first, second, "unit/test_b.py", "unit/test_a.py", "unit/test_b.py"]


def test_a_new_file_that_starts_processes_counts_as_long() -> None:
    assert expected_seconds("spark/test_new.py", {}) > expected_seconds("unit/test_new.py", {})
