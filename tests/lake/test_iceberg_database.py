"""Iceberg tables with a catalog in PostgreSQL: batches in one transaction with the state and the marker of the job."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.exceptions import CommitFailedException

import headrace
from headrace.errors import (
    ClaimLostError,
    MissingDependencyError,
    NotFoundError,
    OptionError,
    PublicationError,
    StoreError,
    UnsupportedError,
)
from headrace.model.own_names import PREFIX, is_internal
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import parse_columns
from headrace.ports import Claim, Staged, Store, Write
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from headrace.testing.queue_reading import wait_until
from headrace_lake.iceberg.database_store import IcebergDatabaseStore
from tests.lake.icebergs import (
    append,
    foreign,
    needs_referee,
    opened,
    orphans,
    referees,
    rows_of,
    url_of,
    use_postgres,
)
from tests.lake.jobs import STATE, TARGETS, add_tables, publish, run, write

BATCHES = 3
# Of the second batch.
POINTS: tuple[str, ...] = ("rows-staged:6", "marker-written:2", "rows-written:5", "parts-written:2", "published:2")
if THOROUGH:
    POINTS += tuple(f"{point}:{times}" for point in ("uncommitted", "committed") for times in range(14, 24))
    POINTS += ("rows-written:4", "rows-written:6")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of the database with the catalog of the test's directory."""
    return use_postgres(tmp_path)


@pytest.fixture
def store(url: str, tmp_path: Path) -> Store:
    store = opened(tmp_path)
    add_tables(store)
    return store


def asked(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def locations(url: str) -> list[tuple[object, ...]]:
    """Return the locations of the metadata of all tables."""
    return asked(url, "SELECT table_name, metadata_location FROM iceberg_tables ORDER BY 1")


def is_waited_for(url: str) -> bool:
    """Return whether a session of the database waits for another one."""
    return bool(
        asked(url, "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
    )


def at(monkeypatch: pytest.MonkeyPatch, wanted: str, step: Callable[[], object]) -> None:
    """Run a step when this thread reaches a failpoint for the first time."""
    steps, thread = [step], threading.current_thread()

    def reach(point: str) -> None:
        if point == wanted and steps and threading.current_thread() is thread:
            steps.pop()()

    monkeypatch.setattr(failpoints, "reach", reach)


def batches_of(directory: Path, table: str) -> list[str]:
    """Return the batches of a table's snapshots, in order."""
    summaries = (each.summary for each in foreign(directory, table).snapshots())
    return [each.additional_properties["headrace.batch"] for each in summaries if each is not None]


# -- one transaction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_at_any_step_publishes_each_batch_once(
    store: Store, url: str, tmp_path: Path, point: str
) -> None:
    victim = CONTEXT.Process(target=run, args=(tmp_path, 0, BATCHES, True, point, opened))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    done = store.publisher("job", "sink").last_batch()
    assert done is not None
    # The tables, the state and the marker agree, before anything is repeated.
    expected = [{"id": batch, "name": f"job {batch}"} for batch in range(BATCHES)]
    assert rows_of(tmp_path) == expected[: done + 1]
    assert rows_of(tmp_path, "u") == expected[done : done + 1]
    assert list(store.table(STATE)) == [{"id": 1, "batches": done + 1}]
    for batch in range(done, BATCHES):
        publish(store, batch, several=True)
    assert not publish(store, BATCHES - 1, several=True)
    assert rows_of(tmp_path) == expected
    assert rows_of(tmp_path, "u") == expected[-1:]
    assert list(store.table(STATE)) == [{"id": 1, "batches": BATCHES}]
    for table in ("t", "u"):
        assert batches_of(tmp_path, table) == [str(batch) for batch in range(BATCHES)]
    assert asked(url, "SELECT count(*) FROM headrace.stage") == [(0,)]
    assert not list((tmp_path / "_headrace" / "staged").rglob("*.parquet"))


def test_a_publication_that_fails_changes_neither_tables_nor_state(store: Store, url: str, tmp_path: Path) -> None:
    publish(store, 0, several=True)
    before, state = locations(url), list(store.table(STATE))
    publisher = store.publisher("job", "sink")
    rows = write(store, publisher, 1, "t", [{"id": 9, "name": "new"}], RowChange.PUT)
    lost = Write("u", RowChange.PUT, (Staged(1, 1),))
    with pytest.raises(ClaimLostError):
        publisher.publish(1, [rows], claim=Claim(TARGETS, None, {"target": "t", "job": "other"}))
    with pytest.raises(PublicationError):
        publisher.publish(1, [rows, lost])
    assert locations(url) == before
    assert list(store.table(STATE)) == state
    assert orphans(tmp_path) == set()
    assert publisher.publish(1, [rows])
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 9]


@pytest.mark.parametrize("last", [False, True])
def test_a_connection_that_ends_before_the_commit(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """The marker shows that nothing is committed. A job with one batch has none: its files stay until a vacuum."""
    publisher = store.publisher("job", "sink")
    rows = write(store, publisher, 0, "t", [{"id": 1, "name": "new"}], RowChange.PUT)
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    end = partial(asked, url, f"{ended} AND datname = current_database()")
    at(monkeypatch, "parts-written", lambda: at(monkeypatch, "uncommitted", end))
    if last:
        with pytest.raises(StoreError, match="unknown"):
            publisher.publish(0, [rows], last=True)
        assert rows_of(tmp_path) == []
        assert len(orphans(tmp_path)) == 1
    else:
        assert publisher.publish(0, [rows])
        assert rows_of(tmp_path) == [{"id": 1, "name": "new"}]
        assert orphans(tmp_path) == set()


# -- other writers ------------------------------------------------------------------------------------------------


def test_two_drivers_publish_a_batch_once(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = opened(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        second: list[Future[bool]] = []

        def start() -> None:
            second.append(pool.submit(publish, other, 0, several=True))
            wait_until(lambda: is_waited_for(url))

        at(monkeypatch, "parts-written", start)
        assert publish(store, 0, several=True)
        assert not second[0].result(30)
    assert batches_of(tmp_path, "t") == batches_of(tmp_path, "u") == ["0"]
    assert orphans(tmp_path) == orphans(tmp_path, "u") == set()


def test_jobs_that_write_the_same_tables_wait_for_each_other(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batch(store: Store, job: str, *tables: str) -> bool:
        publisher = store.publisher(job)
        rows = [{"id": 1, "name": job}, {"id": len(job), "name": job}]
        return publisher.publish(0, [write(store, publisher, 0, each, rows, RowChange.PUT) for each in tables])

    other = opened(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        second: list[Future[bool]] = []

        def start() -> None:
            second.append(pool.submit(batch, other, "second", "u", "t"))
            wait_until(lambda: is_waited_for(url))

        at(monkeypatch, "rows-written", start)
        assert batch(store, "first", "t", "u")
        assert second[0].result(30)
    for table in ("t", "u"):
        assert {row["id"]: row["name"] for row in rows_of(tmp_path, table)} == {1: "second", 5: "first", 6: "second"}


def test_another_program_commits_during_a_publication(
    store: Store, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyiceberg waits for the batch, and its commit is refused: it is of the version before."""
    with ThreadPoolExecutor(1) as pool:
        theirs: list[Future[None]] = []

        def start() -> None:
            theirs.append(pool.submit(append, tmp_path, [{"id": 7, "name": "theirs"}]))
            wait_until(lambda: is_waited_for(url))

        at(monkeypatch, "parts-written", start)
        assert publish(store, 0, several=True)
        with pytest.raises(CommitFailedException):
            theirs[0].result(30)
    append(tmp_path, [{"id": 7, "name": "theirs"}])
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 7]


@pytest.mark.parametrize("commits", [True, False])
def test_a_publication_waits_for_another_program(store: Store, url: str, tmp_path: Path, commits: bool) -> None:
    """It has the row of the table, and commits a version with a key of the batch, or gives up."""
    append(tmp_path, [{"id": 0, "name": "theirs"}, {"id": 7, "name": "theirs"}])
    (version,) = [location for name, location in locations(url) if name == "t"]
    store.table("t").delete([{"id": 0}, {"id": 7}])
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        # A return to the version before.
        other.execute("UPDATE iceberg_tables SET metadata_location = %s WHERE table_name = 't'", (version,))
        waiting = pool.submit(publish, store, 0, several=False)
        wait_until(lambda: is_waited_for(url))
        if commits:
            other.commit()
        else:
            other.rollback()
        assert waiting.result(30)
    expected = [{"id": 0, "name": "job 0"}, {"id": 7, "name": "theirs"}]
    assert rows_of(tmp_path) == expected[: 1 + commits]


def test_writers_at_the_same_time_lose_no_row(store: Store, tmp_path: Path) -> None:
    writers = [CONTEXT.Process(target=put_rows, args=(tmp_path, number)) for number in range(2)]
    for each in writers:
        each.start()
    for batch in range(5):
        publish(store, batch, several=True)
    for each in writers:
        each.join(60)
        assert each.exitcode == 0
    assert sorted(row["id"] for row in rows_of(tmp_path)) == [*range(5), *range(100, 110)]
    store.maintenance("t").compact()  # type: ignore[attr-defined]
    assert sorted(row["id"] for row in rows_of(tmp_path)) == [*range(5), *range(100, 110)]


def put_rows(directory: Path, number: int) -> None:
    """Put rows, each in a commit of its own."""
    with opened(directory) as store:
        for n in range(5):
            store.table("t").put([{"id": 100 + 2 * n + number, "name": str(number)}])


def read_in_child(store: Store) -> None:
    """Read and write, as the child of a process that has used its store."""
    assert [row["id"] for row in store.table("t")] == [0]
    publish(store, 1, several=True)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uses_its_own_connections(store: Store, tmp_path: Path) -> None:
    publish(store, 0, several=True)
    child = multiprocessing.get_context("fork").Process(target=read_in_child, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    publish(store, 2, several=True)
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 1, 2]


# -- catalogs, addresses, readers ---------------------------------------------------------------------------------


@needs_referee
def test_referees_read_the_rows_of_a_batch(store: Store, tmp_path: Path) -> None:
    for batch in range(2):
        publish(store, batch, several=True)
    expected = [[0, "job 0"], [1, "job 1"]]
    assert referees(foreign(tmp_path).metadata_location) == [[expected, expected]]


def test_settings_of_the_database_change_no_commit(store: Store, url: str, tmp_path: Path) -> None:
    with psycopg.connect(url) as connection:
        for setting in ("synchronous_commit = off", "search_path = nowhere", "default_transaction_read_only = on"):
            connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET {setting}".encode())
    with headrace.open(url_of(tmp_path), warehouse=str(tmp_path)) as store:
        store.table("t").put({"id": 1, "name": "a"})
        publish(store, 2, several=True)
        assert [row["id"] for row in store.table("t")] == [1, 2]
        assert isinstance(store, IcebergDatabaseStore)
        with store._catalog_tables._catalog().engine.connect() as session:
            assert session.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


@pytest.mark.parametrize("options", [{"schema": 'o"ther'}, {"catalog": "second"}])
def test_catalogs_of_one_database_are_apart(store: Store, url: str, tmp_path: Path, options: dict[str, Any]) -> None:
    with psycopg.connect(url) as connection:
        connection.execute('CREATE SCHEMA "o""ther"')
    with headrace.open(url_of(tmp_path), create=True, warehouse=str(tmp_path), **options) as other:
        assert other.id != store.id
        assert not other.tables() or all(is_internal(name) for name in other.tables())
        other.create_table("t", {"id": "long", "name": "string"}, "id")
        publish(other, 0, "another", several=False)
        assert list(other.table("t")) == [{"id": 0, "name": "another 0"}]
        # headrace's own tables are of all catalogs: each has names of its own.
        names = {each.beside("t", PREFIX + "x" * 60) for each in (store, other)}
        assert len(names) == 2
        assert all(is_internal(name) and len(name) < 64 for name in names)
    assert rows_of(tmp_path) == []


def test_headrace_says_which_tables_of_the_database_it_changes(store: Store, url: str) -> None:
    with headrace.open(url) as database:
        changed = store.changed_tables("t", database.id)
        assert any(name.endswith("iceberg_tables") for name in changed)
        assert "headrace.*" in changed
    assert store.changed_tables("t", store.id) == ["t"]
    assert store.changed_tables("t", "another") == []


@pytest.mark.parametrize(
    ("rest", "options", "message"),
    [
        ("postgresql://localhost/shop", {}, "set option warehouse"),
        ("postgresql://localhost/shop", {"warehouse": "relative"}, "absolute path"),
        ("postgresql://localhost/shop", {"home": "/data/home"}, "home is for catalogs in SQLite"),
        ("postgresql://localhost/shop", {"warehouse": "/data", "schema": 1}, "schema must be the name"),
        ("postgresql://user:pass-in-url@localhost/shop", {"warehouse": "/data"}, "cannot contain a password"),
        ("sqlite:///data/catalog.db", {"password": "hush-hush"}, "password is for catalogs in PostgreSQL"),
        ("sqlite:///data/catalog.db", {"sslmode": "require"}, "sslmode is for catalogs in PostgreSQL"),
        ("postgres://localhost/shop", {}, "iceberg\\+postgresql://user@host/database"),
    ],
)
def test_options_that_a_catalog_does_not_have_are_refused(rest: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        headrace.open(f"iceberg+{rest}", **options)
    assert not {"hush-hush", "pass-in-url"} & set(str(caught.value).replace("@", " ").split())


def test_a_database_without_a_catalog(url: str, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no Iceberg catalog.*create=True"):
        headrace.open(url_of(tmp_path), warehouse=str(tmp_path))
    with pytest.raises(NotFoundError, match="no such directory"):
        headrace.open(url_of(tmp_path), warehouse=str(tmp_path / "nowhere"))


def test_drivers_of_postgresql_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=r"headrace\[postgres\]"):
        headrace.open("iceberg+postgresql://localhost/shop", warehouse=str(tmp_path))


def test_a_batch_changes_no_columns(store: Store) -> None:
    alteration = Alteration(added=parse_columns({"more": "long"}))
    with pytest.raises(UnsupportedError, match="does not change the columns"):
        store.publisher("job").publish(0, [Write("t", RowChange.PUT, (), alteration)])
