"""Random changes under workers and a server that are killed; see `tests.interop.mirror_histories`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.testing.effort import thorough
from tests.interop import mirror_histories
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def killed() -> Iterator[PostgresServer]:
    """A server of its own, because it is killed."""
    server = PostgresServer.start()
    try:
        yield server
    finally:
        server.remove()


@pytest.mark.parametrize("seed", range(thorough(10)))
def test_a_copy_is_the_table_or_the_worker_names_the_change(killed: PostgresServer, seed: int) -> None:
    mirror_histories.play(killed, seed, 6)
