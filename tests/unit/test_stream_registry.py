"""The record of a stream in its workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.errors import AlreadyExistsError, StoreError
from headrace.streaming_sql.running_streams import RunningStreams
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[StreamRegistry]:
    workspace = Workspace(tmp_path)
    yield StreamRegistry(workspace)
    workspace.close()


def record(registry: StreamRegistry, text: str) -> None:
    registry.record_start("Totals", script=text, fingerprint=text, target="t", checkpoint="cp")


def test_a_stream_that_never_started_may_get_another_text(registry: StreamRegistry) -> None:
    record(registry, "1")
    registry.set_ended("totals", "failed", "SchemaError: no such column")
    record(registry, "2")
    assert registry.get("totals").script == "2"


def test_a_stream_that_has_started_keeps_its_text_even_if_its_next_start_fails(registry: StreamRegistry) -> None:
    record(registry, "1")
    registry.set_running("totals", "query")
    registry.set_ended("totals", "stopped")
    record(registry, "1")
    registry.set_ended("totals", "failed", "StoreError: no connection")
    with pytest.raises(AlreadyExistsError, match="another text"):
        record(registry, "2")
    assert registry.get("totals").query_id == "query"


@pytest.mark.parametrize(
    ("error", "state", "shown"),
    [(KeyboardInterrupt(), "stopped", None), (StoreError("no connection"), "failed", "StoreError: no connection")],
)
def test_a_stream_that_the_user_ends_while_it_starts_is_stopped(
    registry: StreamRegistry, error: BaseException, state: str, shown: str | None
) -> None:
    record(registry, "1")

    def start() -> NoReturn:
        raise error

    with pytest.raises(type(error)):
        RunningStreams(registry).start("totals", start)
    status = registry.get("totals")
    assert (status.state, status.error) == (state, shown)
