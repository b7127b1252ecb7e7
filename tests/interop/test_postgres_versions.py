"""Tables, tunnels, publication and files on every version of PostgreSQL that the machine has.

`make test-postgres VERSION=15` runs all tests of PostgreSQL on one version, which it fetches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.ports import Store, Write
from headrace.stores.postgres.tunnels import stored_tunnels
from headrace.testing.reading import drain, replay, state_of
from tests.postgres_server import PROGRAMS, USER, PostgresServer, installed_programs, major_version

FETCHED = Path(__file__).parents[2] / "build" / "postgres"
VERSIONS = range(14, 19)


def programs_of(version: int) -> Path | None:
    """Return the directory of the programs of a version: installed in the system, or fetched; None if there is none."""
    fetched = [path.parent for path in FETCHED.glob("*/*/bin/postgres")]
    return next((each for each in (*installed_programs(), *fetched) if major_version(each) == version), None)


@pytest.fixture(params=[version for version in VERSIONS if version != major_version(PROGRAMS)])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    programs = programs_of(request.param)
    if programs is None:
        pytest.skip(f"PostgreSQL {request.param} is not installed")
    # Base data is spooled by its first reader, as that of large tables.
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    server = PostgresServer.start(programs)
    try:
        with headrace.open(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres") as opened:
            yield opened
    finally:
        server.remove()


def test_a_table_is_followed_and_published_and_a_checkpoint_is_kept(store: Store) -> None:
    columns = {"id": "long", "price": "decimal(10,2)", "at": "timestamp", "tags": "array<string>"}
    orders = store.create_table("orders", columns, "id", pre_images=True)
    copy = store.create_table("copy", columns, "id")
    orders.put([{"id": number, "price": None, "tags": ["a", None]} for number in range(100)])
    tunnel = store.create_tunnel("orders", "changes", base_channels=3)
    orders.update([{"id": number, "price": Decimal("1.25")} for number in range(50)])
    orders.delete([{"id": 7}, {"id": 70}])
    changes = drain(tunnel)
    assert replay(changes) == state_of(orders)
    assert [change.op for change in changes].count(ChangeOp.BASE) > 0

    publisher = store.publisher("job", "copy")
    rows = pa.Table.from_pylist(list(state_of(orders).values()), orders.schema.arrow).to_batches()
    for published in (True, False):
        write = Write("copy", RowChange.PUT, tuple(publisher.stage(0, rows)))
        assert publisher.publish(0, [write], content="same") is published
    assert state_of(copy) == state_of(orders)

    with store.files().create("/jobs/offsets/0") as upload:
        upload.write(b"v1")
        upload.commit()
    assert [status.path for status in store.files().list("/jobs/offsets")] == ["/jobs/offsets/0"]


@pytest.mark.parametrize("lost", ["publication", "slot"])
def test_a_lost_publication_or_slot_is_a_data_loss(store: Store, lost: str) -> None:
    orders = store.create_table("orders", {"id": "long", "price": "long"}, "id")
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    orders.put({"id": 1})
    with psycopg.connect(store.url, autocommit=True) as session:
        if lost == "slot":
            session.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        else:
            session.execute(f'DROP PUBLICATION "headrace_{tunnel.id}"')
    with pytest.raises(DataLossError, match=f"{lost} of tunnel 'changes' does not exist"):
        drain(tunnel)


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs a server as another user")
def test_root_runs_a_server_from_a_directory_that_other_users_cannot_read(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    package = PROGRAMS.parents[1]
    for each in (package, package.with_name(f"{package.name}.libs")):
        (tmp_path / each.name).symlink_to(each)
    server = PostgresServer.start(tmp_path / PROGRAMS.relative_to(package.parent))
    try:
        assert server.programs.is_relative_to(server.root)
    finally:
        server.remove()
