"""Waits for the growth of PostgreSQL's log: the pauses between looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.stores.postgres import log_growth
from headrace.stores.postgres.connection import PostgresConnection
from headrace.stores.postgres.tunnels import tunnel


def test_a_worker_looks_at_the_log_every_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses, position = 0.0, list[float](), "0/1"

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    def ask(question: Any) -> str:
        return position if now < 60 else "0/2"

    monkeypatch.setattr(log_growth, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    growth = log_growth.LogGrowth(
        cast(PostgresConnection, SimpleNamespace(ask=ask)), tunnel._FIRST_PAUSE, tunnel._LONGEST_PAUSE
    )
    assert growth.wait(0)
    assert not growth.wait(10)
    assert (pauses[0], max(pauses)) == (0.002, 0.02)
    assert growth.wait(100)
    assert 60 <= now < 60.02
