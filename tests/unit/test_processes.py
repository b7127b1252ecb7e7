"""The server that forks the processes of tests."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from headrace.testing.processes import CONTEXT


def test_forked_processes_have_loaded_the_stores_of_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server may begin in the directory of any test.
    monkeypatch.chdir(tmp_path)
    with ProcessPoolExecutor(1, CONTEXT) as pool:
        loaded = pool.submit(_loaded).result()
    assert "tests.conformance.stores" in loaded


def _loaded() -> set[str]:
    return set(sys.modules)
