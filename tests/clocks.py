"""The time as one module sees it, and the time of retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.support import retries


def patch_time(monkeypatch: pytest.MonkeyPatch, module: str, **functions: Callable[..., Any]) -> None:
    """Replace functions of `time` for one module: threads of other modules, such as servers, use the real ones."""
    monkeypatch.setattr(f"{module}.time", SimpleNamespace(**{**vars(time), **functions}))


def count_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count only the pauses between retries as their time, and do not wait for them.

    The number of retries of a call is then the same on a busy machine.
    """
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(retries, "monotonic", lambda: now)
    monkeypatch.setattr(retries, "sleep", sleep)
