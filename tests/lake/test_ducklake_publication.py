"""Batches in a DuckLake and its database: once, also when their driver is killed at any step."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import psycopg
import pytest

from headrace.errors import ClaimLostError, PublicationError
from headrace.model.own_names import PREFIX
from headrace.model.tables.changes import RowChange
from headrace.ports import Claim, Publisher, Store, Write
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from headrace_lake.ducklake import compacting
from headrace_lake.ducklake.store import DuckLakeStore
from headrace_lake.ducklake.writing import NewFiles
from tests.lake.ducklakes import catalog, database, opened
from tests.lake.jobs import write

STATE, TARGETS = f"{PREFIX}state", f"{PREFIX}targets"
BATCHES, MANY = 3, 1500
NEXT_SNAPSHOT = (
    b"INSERT INTO public.ducklake_snapshot SELECT max(snapshot_id) + 1, now(), max(schema_version),"
    b" max(next_catalog_id), max(next_file_id) FROM public.ducklake_snapshot"
)
# The second publication: `committed` of the transactions before it are those of staging.
POINTS: tuple[str, ...] = ("rows-staged:8", "marker-written:2", "parts-written:2", "rows-written:2", "published:2")
if THOROUGH:
    POINTS += tuple(f"{point}:{times}" for point in ("uncommitted", "committed") for times in range(8, 16))


def create(url: str, directory: Path) -> None:
    """Create the tables of the jobs: two of the DuckLake, one of the database and two of headrace."""
    with opened(url, directory) as store:
        store.create_table("sales.u", {"id": "long", "name": "string"}, "id")
        store.create_table("postgresql:plain", {"id": "long", "name": "string"}, "id")
        store.create_table(STATE, {"id": "long", "batches": "long"}, "id")
        store.create_table(TARGETS, {"target": "string", "job": "string"}, "target")


def publish(store: Store, batch: int, job: str = "job") -> bool:
    """Publish a batch as a driver does after any crash.

    Each batch puts a row into table ``t``; many rows, which need a file, into ``sales.u``, where it removes the last
    row of the batch before; a row into a table of the database; the state; and claims the target.
    """
    publisher = store.publisher(job, "sink")
    publisher.check_complete(batch)
    if publisher.resume(batch):
        return publisher.publish(batch, [], content=str(batch))
    row = {"id": batch, "name": f"{job} {batch}"}
    many = [{"id": batch * MANY + n, "name": f"{job} {n}"} for n in range(MANY)]
    writes = [
        write(store, publisher, batch, "t", [row], RowChange.PUT),
        write(store, publisher, batch, "sales.u", many, RowChange.PUT),
        write(store, publisher, batch, "sales.u", [{"id": batch * MANY - 1}], RowChange.DELETE),
        write(store, publisher, batch, "postgresql:plain", [row], RowChange.PUT),
        write(store, publisher, batch, STATE, [{"id": 1, "batches": batch + 1}], RowChange.PUT),
    ]
    claim = Claim(TARGETS, store.table(TARGETS).get({"target": "t"}), {"target": "t", "job": job})
    return publisher.publish(batch, writes, content=str(batch), claim=claim)


def run(url: str, directory: Path, first: int, end: int, point: str | None = None) -> None:
    """Publish batches, and be killed at a failpoint."""
    failpoints.arm(point)
    with opened(url, directory) as store:
        for batch in range(first, end):
            publish(store, batch)


@pytest.fixture
def url() -> str:
    return database()


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_at_any_step_publishes_each_batch_once(url: str, tmp_path: Path, point: str) -> None:
    create(url, tmp_path)
    victim = CONTEXT.Process(target=run, args=(url, tmp_path, 0, BATCHES, point))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    with opened(url, tmp_path) as store:
        done = store.publisher("job", "sink").last_batch()
        for batch in range(0 if done is None else done, BATCHES):
            publish(store, batch)
        assert not publish(store, BATCHES - 1)
        expected = [{"id": batch, "name": f"job {batch}"} for batch in range(BATCHES)]
        assert list(store.table("t")) == expected
        assert list(store.table("postgresql:plain")) == expected
        assert list(store.table(STATE)) == [{"id": 1, "batches": BATCHES}]
        ids = [row["id"] for row in store.table("sales.u")]
        assert ids == [n for n in range(BATCHES * MANY) if (n + 1) % MANY or n == BATCHES * MANY - 1]
    made = catalog(
        url, "SELECT commit_extra_info::json->'headrace'->>'batch' FROM ducklake_snapshot_changes ORDER BY 1"
    )
    assert [batch for (batch,) in made if batch is not None] == [str(batch) for batch in range(BATCHES)]
    assert catalog(url, "SELECT count(*) FROM headrace.stage") == [(0,)]


@pytest.fixture
def store(url: str, tmp_path: Path) -> DuckLakeStore:
    create(url, tmp_path)
    found = opened(url, tmp_path)
    assert isinstance(found, DuckLakeStore)
    return found


def files_of(directory: Path) -> set[str]:
    return {path.name for path in (directory / "files").rglob("*.parquet")}


def test_a_publication_that_fails_changes_neither_the_lake_nor_the_database(
    store: Store, url: str, tmp_path: Path
) -> None:
    publish(store, 0)
    before, files = catalog(url, "SELECT max(snapshot_id) FROM ducklake_snapshot"), files_of(tmp_path)
    publisher = store.publisher("job", "sink")
    many = [{"id": 10_000 + n, "name": "new"} for n in range(MANY)]
    writes = [write(store, publisher, 1, "sales.u", many, RowChange.PUT)]
    with pytest.raises(ClaimLostError):
        publisher.publish(1, writes, claim=Claim(TARGETS, None, {"target": "t", "job": "other"}))
    with pytest.raises(PublicationError):
        publisher.publish(1, [Write("sales.u", RowChange.PUT, (*writes[0].staged, *writes[0].staged[:0])), _lost()])
    assert catalog(url, "SELECT max(snapshot_id) FROM ducklake_snapshot") == before
    # The files of attempts are deleted.
    assert files_of(tmp_path) == files
    assert publisher.publish(1, writes)
    assert len(list(store.table("sales.u"))) == 2 * MANY


def _lost() -> Write:
    from headrace.ports import Staged

    return Write("t", RowChange.PUT, (Staged(1, 1),))


def test_another_writer_has_the_next_snapshot(store: Store, url: str) -> None:
    """It commits, or it gives up: both are waited for."""
    for commits in (True, False):
        with psycopg.connect(url) as other:
            other.execute(NEXT_SNAPSHOT)
            waiting = threading.Thread(target=store.table("t").put, args=([{"id": int(commits), "name": "n"}],))
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
            if not commits:
                other.rollback()
        waiting.join(30)
        assert not waiting.is_alive()
    assert [row["id"] for row in store.table("t")] == [0, 1]
    numbers = catalog(url, "SELECT count(*), max(snapshot_id) + 1 FROM ducklake_snapshot")
    assert numbers[0][0] == numbers[0][1]


def test_files_of_a_commit_whose_answer_is_lost_stay(store: DuckLakeStore, url: str, tmp_path: Path) -> None:
    """The server may still commit when the driver deletes the files of attempts."""
    files = NewFiles()
    for path in (files.path(tmp_path / "files", ending) for ending in ("-a", "-b")):
        path.touch()
    committed, rolled_back = files.paths
    with psycopg.connect(url) as server:
        server.execute(NEXT_SNAPSHOT)
        server.execute("INSERT INTO public.ducklake_data_file (data_file_id, path) VALUES (999, %s)", (committed.name,))
        waiting = threading.Thread(target=store._database.clean, args=(files,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join(30)
    assert committed.exists()
    assert not rolled_back.exists()


def test_a_flush_that_fails_is_no_error_of_the_write_before(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "MAX_INLINED_ROWS", 0)
    table = store.table("t")
    table.put([{"id": 1, "name": "a"}])
    directory = tmp_path / "files" / "main" / "t"
    directory.parent.mkdir(parents=True)
    directory.touch()
    table.put([{"id": 2, "name": "b"}])
    directory.unlink()
    table.put([{"id": 3, "name": "c"}])
    assert [row["id"] for row in table] == [1, 2, 3]
    assert len(files_of(tmp_path)) == 1


def test_writers_at_the_same_time_lose_no_row(url: str, store: Store, tmp_path: Path) -> None:
    writers = [CONTEXT.Process(target=put_rows, args=(url, tmp_path, number)) for number in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(60)
        assert each.exitcode == os.EX_OK
    assert [row["id"] for row in store.table("t")] == list(range(20))


def put_rows(url: str, directory: Path, number: int) -> None:
    """Put rows, each in a snapshot of its own; every second one also moves a row that the other writer has put."""
    with opened(url, directory) as store:
        for n in range(10):
            store.table("t").put([{"id": 2 * n + number, "name": str(number)}])


def test_stages_of_other_sinks_are_no_batches(store: Store) -> None:
    publisher: Publisher = store.publisher("job", "sink")
    other = store.publisher("job", "other")
    staged = write(store, other, 0, "t", [{"id": 1, "name": "a"}], RowChange.PUT)
    with pytest.raises(PublicationError):
        publisher.publish(0, [staged])
    assert list(store.table("t")) == []
