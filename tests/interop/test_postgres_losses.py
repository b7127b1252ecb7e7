"""The remedies of lost changes, as each kind of reader takes them, and looks that accept nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.errors import DataLossError
from headrace.ports import Store, Tunnel
from headrace.testing.reading import drain
from headrace.ui.recent_changes import recent_changes
from tests.interop.own_database import Server
from tests.interop.test_postgres_partitions import accepted


def rewrite(server: Server, tunnel: Tunnel) -> None:
    server.execute("ALTER TABLE t ALTER n TYPE int USING n * 10")


def truncate(server: Server, tunnel: Tunnel) -> None:
    server.execute("TRUNCATE t")


def change_type(server: Server, tunnel: Tunnel) -> None:
    server.execute("INSERT INTO t VALUES (2, 2)")
    server.execute("ALTER TABLE t ALTER n TYPE text")


def change_publication(server: Server, tunnel: Tunnel) -> None:
    server.execute(f'ALTER PUBLICATION "headrace_{tunnel.id}" SET (publish = insert)')
    server.execute(f"ALTER PUBLICATION \"headrace_{tunnel.id}\" SET (publish = 'insert, update, delete, truncate')")


_LOSSES = [rewrite, truncate, change_type, change_publication]


def worker_keys(tunnel: Tunnel, **options: Any) -> list[int]:
    with tunnel.consume(idle="stop", **options) as worker:
        return [key for batch in worker for key in batch.changes.rows.column("id").to_pylist()]


@pytest.mark.parametrize("lose", _LOSSES)
def test_a_loss_is_an_error_for_each_reader_and_its_remedy_works(
    store: Store, server: Server, capsys: pytest.CaptureFixture[str], lose: Callable[[Server, Tunnel], None]
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    server.execute("INSERT INTO t VALUES (1, 1)")
    tunnel = store.create_tunnel("t", "changes")
    assert worker_keys(tunnel) == [1]
    lose(server, tunnel)
    server.execute("INSERT INTO t VALUES (3, 3)")
    # A look at the changes accepts nothing.
    assert main(["tunnel", "tail", "changes", "--no-follow", "-s", store.url]) == (0 if lose is truncate else 1)
    assert lose is truncate or "failOnDataLoss=false in the query that reads the tunnel" in capsys.readouterr().err
    with suppress(DataLossError):
        recent_changes(tunnel, rewinds=False)
    with pytest.raises(DataLossError, match="with fail_on_data_loss=False"):
        worker_keys(tunnel)
    assert worker_keys(tunnel, fail_on_data_loss=False) == [3]
    server.execute("INSERT INTO t VALUES (4, 4)")
    assert main(["tunnel", "tail", "changes", "--no-follow", "-s", store.url]) == 0
    assert worker_keys(tunnel) == [4]


def test_a_loss_that_a_query_has_accepted_is_none_for_a_look(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    server.execute("INSERT INTO t VALUES (1, 1)")
    tunnel = store.create_tunnel("t", "changes")
    drain(tunnel)
    rewrite(server, tunnel)
    assert accepted(tunnel) == []
    assert main(["tunnel", "tail", "changes", "--no-follow", "-s", store.url]) == 0
