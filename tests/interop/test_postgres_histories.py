"""A few of the random histories of `tests.interop.postgres_histories`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing.effort import thorough
from tests.interop.postgres_histories import History, prepared
from tests.postgres_server import PROGRAMS, PostgresServer, installed_programs

DATABASE = "histories"


@pytest.fixture(scope="module", params=[PROGRAMS, *installed_programs()[:1]], ids=lambda path: path.parent.name)
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server of this version."""
    programs: Path = request.param
    server = PostgresServer.start(programs)
    try:
        prepared(server.port, DATABASE)
        yield server.port
    finally:
        server.remove()


def test_a_reader_has_the_table_or_an_error_of_headrace(port: int) -> None:
    refused = []
    count = thorough(100)
    for seed in range(count):
        history = History(seed, DATABASE, port)
        history.play()
        if history.refused is not None:
            refused.append(history.refused)
    assert len(refused) < count // 2
