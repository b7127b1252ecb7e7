from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.storm import Actor


@pytest.fixture
def actors_of() -> Iterator[list[Actor]]:
    """A list of running actors, which are killed at the end of the test."""
    running: list[Actor] = []
    yield running
    for actor in running:
        actor.kill()
        actor.log.close()


@pytest.fixture
def server(tmp_path: Path, actors_of: list[Actor], monkeypatch: pytest.MonkeyPatch) -> Actor:
    """A Tablestore server with the store of the test's directory. The actors use its address."""
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_ID", "LTAIchaos")
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_SECRET", "only for tests")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    (tmp_path / "address").write_text(f"tablestore+http://127.0.0.1:{port}/store")
    actors_of.append(Actor("actors", tmp_path, "server", str(port)))
    return actors_of[-1]
