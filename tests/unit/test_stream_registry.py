"""The record of a stream in its workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import AlreadyExistsError
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
