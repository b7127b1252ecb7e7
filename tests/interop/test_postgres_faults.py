"""Connections to PostgreSQL that break or stall at any message: a call succeeds, or fails and leaves nothing half done.

Each operation runs once without a fault, which shows the messages of its connections. Then it runs again for each kind
of message, with a fault at the first or the last message of the kind: one of the faults and half of the kinds, or all
of them in a thorough run.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.errors import AlreadyExistsError, HeadraceError, StoreError
from headrace.model.tables.bad_rows import table_name
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.values import ChannelKind, Position
from headrace.ports import BadRows, Marker, Store, Write
from headrace.stores.postgres.tunnels import stored_tunnels
from headrace.testing.effort import THOROUGH
from headrace.testing.reading import drain, read_from, replay, rows_of, state_of
from tests.conformance import serving
from tests.postgres_proxy import Fault, Message, PostgresProxy, postgres_proxy
from tests.postgres_server import USER

Session = psycopg.Connection[tuple[Any, ...]]
ROWS = [{"id": f"k{number}", "price": number} for number in range(20)]
SCHEMA = {"id": "string", "price": "long"}
# In a store of this time, a lost connection is tried again, and a test of an error ends soon.
RETRY_SECONDS = 5.0
QUERY = Message(True, "Q")
# The last message of a connection, which nobody answers.
END = Message(True, "X")


class Operation(ABC):
    """A call of a store, on objects that `prepare` creates anew for each run.

    Attributes:
        direct: the store without the proxy between.
        session: a connection to the database, without the proxy.
        number: the number of the run, for names.
    """

    def __init__(self, direct: Store, session: Session, number: int) -> None:
        self.direct = direct
        self.session = session
        self.number = number
        self.prepare()

    def prepare(self) -> None:
        """Create what the operation needs."""
        self.table = self.direct.create_table(f"t{self.number}", SCHEMA, "id")
        self.table.put(ROWS)

    @abstractmethod
    def run(self, store: Store) -> None:
        """Run the operation, and check its result."""

    @abstractmethod
    def check(self, *, done: bool) -> None:
        """Check that nothing is half done; with ``done``, that the operation is complete."""

    may_be_unknown = True
    """Whether the error of a lost connection may be that the outcome is unknown."""

    def remove(self) -> None:
        """Remove what the run has left, so that later ones are not slower."""
        self.direct.drop_table(self.table.name)


class Put(Operation):
    new: tuple[dict[str, Any], ...] = ({"id": "k1", "price": -1}, {"id": "new", "price": 7})

    def run(self, store: Store) -> None:
        store.table(self.table.name).put(list(self.new))

    def check(self, *, done: bool) -> None:
        before = {row["id"]: row["price"] for row in ROWS}
        after = before | {row["id"]: row["price"] for row in self.new}
        assert {row["id"]: row["price"] for row in rows_of(self.table)} in ([after] if done else [before, after])


class Delete(Operation):
    def run(self, store: Store) -> None:
        store.table(self.table.name).delete([{"id": "k1"}, {"id": "k2"}])

    def check(self, *, done: bool) -> None:
        assert len(rows_of(self.table)) in ([len(ROWS) - 2] if done else [len(ROWS) - 2, len(ROWS)])


class Scan(Operation):
    def run(self, store: Store) -> None:
        assert sorted(rows_of(store.table(self.table.name)), key=lambda row: row["price"]) == ROWS

    def check(self, *, done: bool) -> None:
        assert len(rows_of(self.table)) == len(ROWS)


class GetMany(Scan):
    def run(self, store: Store) -> None:
        found = store.table(self.table.name).get_many([{"id": "k3"}, {"id": "none"}])
        assert [row["price"] for row in found.to_pylist()] == [3, None]


class CreateTunnel(Operation):
    def run(self, store: Store) -> None:
        try:
            store.create_tunnel(self.table.name, "changes", base_channels=2)
        except AlreadyExistsError:
            # The answer of a call that was complete is lost.
            assert self.direct.tunnel("changes", self.table.name)

    def check(self, *, done: bool) -> None:
        """A tunnel is there with its slot and publication, or nothing of it."""
        slots, publications, tunnels = (
            {name for (name,) in self.session.execute(query)}
            for query in (
                "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()",
                "SELECT pubname FROM pg_publication",
                "SELECT slot FROM headrace.tunnel",
            )
        )
        assert slots == publications == tunnels
        if done:
            (tunnel,) = self.direct.tunnels(self.table.name)
            self.table.put({"id": "late", "price": 1})
            assert replay(drain(tunnel)) == state_of(self.table)


class _OnTunnel(Operation):
    """An operation on a tunnel of base data and stream."""

    def prepare(self) -> None:
        super().prepare()
        self.tunnel = self.direct.create_tunnel(self.table.name, "changes", base_channels=2)

    def check(self, *, done: bool) -> None:
        """All changes can still be read."""
        if done:
            assert replay(drain(self.tunnel), getattr(self, "known", {})) == state_of(self.table)


class ReadBaseData(_OnTunnel):
    def run(self, store: Store) -> None:
        tunnel = store.tunnel("changes", self.table.name)
        found = []
        for channel in tunnel.channels():
            if channel.kind is ChannelKind.BASE_DATA:
                found += read_from(tunnel, channel.id, channel.committed, page_rows=7)[0]
        assert sorted(change.row["price"] for change in found) == [row["price"] for row in ROWS]


class _OnStream(_OnTunnel):
    def prepare(self) -> None:
        super().prepare()
        self.known = replay(drain(self.tunnel))
        self.table.put([{"id": f"n{number}", "price": number} for number in range(10)])
        self.table.delete({"id": "k1"})


class ReadStream(_OnStream):
    def run(self, store: Store) -> None:
        tunnel = store.tunnel("changes", self.table.name)
        found, _ = read_from(tunnel, "stream", self._committed(), page_rows=4)
        assert replay(found, self.known) == state_of(self.table)

    def _committed(self) -> Position:
        return next(channel.committed for channel in self.tunnel.channels() if channel.id == "stream")


class CommitPosition(_OnStream):
    def prepare(self) -> None:
        super().prepare()
        self.before = self.tunnel.describe().channels[-1].channel.committed
        changes, self.after = read_from(self.tunnel, "stream", self.before)
        self.known = replay(changes, self.known)

    def run(self, store: Store) -> None:
        store.tunnel("changes", self.table.name).commit({"stream": self.after})

    def check(self, *, done: bool) -> None:
        committed = self.tunnel.describe().channels[-1].channel.committed
        assert committed in ([self.after] if done else [self.before, self.after])
        if done:
            super().check(done=True)


class Publish(Operation):
    """A publication, whose marker shows whether an attempt with an unknown outcome was complete."""

    may_be_unknown = False

    def prepare(self) -> None:
        super().prepare()
        self.session.execute(f"CREATE TABLE w{self.number} (n bigint)")
        self.session.execute(
            f"CREATE FUNCTION f{self.number}() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN INSERT INTO w{self.number} SELECT count(*) FROM written; RETURN NULL; END $$"
        )
        self.session.execute(
            f"CREATE TRIGGER noted AFTER INSERT ON t{self.number} REFERENCING NEW TABLE AS written"
            f" FOR EACH STATEMENT EXECUTE FUNCTION f{self.number}()"
        )

    def run(self, store: Store) -> None:
        publisher = store.publisher("job", self.table.name)
        rows = pa.RecordBatch.from_pylist([{"id": "k1", "price": -1}, {"id": "new", "price": 7}])
        staged = tuple(publisher.stage(0, [rows]))
        publisher.publish(0, [Write(self.table.name, RowChange.PUT, staged)], content="same")

    def check(self, *, done: bool) -> None:
        written = self.session.execute(f"SELECT count(*) FROM w{self.number}").fetchone()
        published = self.direct.publisher("job", self.table.name).published(0)
        prices = {row["id"]: row["price"] for row in rows_of(self.table)}
        assert published or not done
        assert (written, prices.get("new"), prices["k1"]) == (((1,), 7, -1) if published else ((0,), None, 1))


class PublishBadRows(Operation):
    """A publication with a row that the table refuses."""

    may_be_unknown = False

    def prepare(self) -> None:
        super().prepare()
        self.session.execute(f"ALTER TABLE t{self.number} ADD CONSTRAINT lucky CHECK (price <> 1313)")
        self.direct.create_bad_rows(self.table.name)
        self.bad = self.direct.table(table_name(self.table.name))

    def run(self, store: Store) -> None:
        publisher = store.publisher("job", self.table.name)
        rows = pa.RecordBatch.from_pylist([{"id": "k1", "price": -1}, {"id": "new", "price": 1313}])
        staged = tuple(publisher.stage(0, [rows]))
        bad_rows = BadRows(self.bad.name, "stream")
        publisher.publish(0, [Write(self.table.name, RowChange.PUT, staged, bad_rows=bad_rows)], content="same")

    def check(self, *, done: bool) -> None:
        published = self.direct.publisher("job", self.table.name).published(0)
        found = [row["price"] for row in rows_of(self.table) if row["id"] == "k1"]
        assert published or not done
        assert (found, len(rows_of(self.bad))) == (([-1], 1) if published else ([1], 0))

    def remove(self) -> None:
        super().remove()
        self.direct.drop_table(self.bad.name)


class RetryBadRows(PublishBadRows):
    may_be_unknown = True

    def prepare(self) -> None:
        super().prepare()
        super().run(self.direct)
        self.session.execute(f"ALTER TABLE t{self.number} DROP CONSTRAINT lucky")

    def run(self, store: Store) -> None:
        store.retry_bad_rows(self.table.name)

    def check(self, *, done: bool) -> None:
        found = len([row for row in rows_of(self.table) if row["id"] == "new"]), len(rows_of(self.bad))
        assert found in ([(1, 0)] if done else [(1, 0), (0, 1)])


class PublishNew(Operation):
    """A publication of rows with new keys, which are copied into the table; its marker has their position."""

    may_be_unknown = False

    def run(self, store: Store) -> None:
        publisher = store.publisher("job", self.table.name)
        publisher.in_process = True
        rows = pa.record_batch({"id": [f"new{number}" for number in range(1200)], "price": [7] * 1200})
        staged = tuple(publisher.stage(0, [rows]))
        publisher.publish(0, [Write(self.table.name, RowChange.PUT, staged, new=True)], content="position")

    def check(self, *, done: bool) -> None:
        marker = self.direct.publisher("job", self.table.name).marker()
        assert marker == Marker(0, "position") if done else marker in (None, Marker(0, "position"))
        assert len(rows_of(self.table)) == len(ROWS) + (1200 if marker else 0)


class WriteFile(Operation):
    """A file as Spark writes it in a checkpoint: under a temporary path, and then moved."""

    may_be_unknown = False
    content = b"checkpoint" * 600_000

    def prepare(self) -> None:
        self.path = f"/checkpoints/{self.number}/offsets/0"

    def run(self, store: Store) -> None:
        files, temporary = store.files(), f"{self.path}.tmp"
        with files.create(temporary, overwrite=True) as upload:
            for start in range(0, len(self.content), 1 << 20):
                upload.write(self.content[start : start + (1 << 20)])
            upload.commit()
        files.move(temporary, self.path, overwrite=True)

    def check(self, *, done: bool) -> None:
        files = self.direct.files()
        if files.status(self.path) is None:
            assert not done
        else:
            assert b"".join(files.open_read(self.path).parts) == self.content

    def remove(self) -> None:
        self.direct.files().remove("/checkpoints", recursive=True)


OPERATIONS = [
    Put, Delete, Scan, GetMany, CreateTunnel, ReadBaseData, ReadStream, CommitPosition, Publish, PublishNew,
    PublishBadRows, RetryBadRows, WriteFile,
]  # fmt: skip


@pytest.fixture(scope="module")
def proxy() -> Iterator[PostgresProxy]:
    with postgres_proxy(serving.postgres_port()) as running:
        yield running


@pytest.fixture
def url() -> str:
    return serving.postgres_database()


@pytest.fixture
def direct(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    # Base data is spooled by its first reader, as that of large tables.
    monkeypatch.setattr(stored_tunnels, "SMALL_TABLE_ROWS", 0)
    with headrace.open(url) as opened:
        # The objects that headrace creates at their first use exist.
        opened.create_table("first", SCHEMA, "id")
        opened.create_tunnel("first", "first")
        opened.publisher("first", "first").published(0)
        opened.files().make_directory("/checkpoints")
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


@pytest.fixture
def session(url: str) -> Iterator[Session]:
    with psycopg.connect(url, autocommit=True) as opened:
        yield opened


def through(proxy: PostgresProxy, url: str) -> Store:
    """Return a store whose connections pass the proxy."""
    return headrace.open(
        f"postgresql://{USER}@127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}", retry_seconds=RETRY_SECONDS
    )


def places(seen: list[Message], shift: int) -> list[tuple[Message, int, Fault]]:
    """Return faults, and the kinds and numbers of their messages: one fault for each kind of message.

    Args:
        shift: which fault the first kind has. With 0, 1, … each kind has each fault once.
    """
    faults, ends = list(Fault), itertools.cycle((0, -1))
    return [
        (message, next(ends) % count, faults[(place + shift) % len(faults)])
        for place, (message, count) in enumerate(Counter(seen).items())
    ]


def error_of(operation: Operation, store: Store) -> HeadraceError | None:
    """Run an operation; return its error, or None."""
    try:
        operation.run(store)
    except HeadraceError as error:
        return error
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shift", range(len(Fault) if THOROUGH else 1))
@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_fault_at_any_message_leaves_nothing_half_done_and_a_repetition_is_right(
    proxy: PostgresProxy, url: str, direct: Store, session: Session, kind: type[Operation], shift: int
) -> None:
    proxy.watch()
    whole = kind(direct, session, 0)
    with through(proxy, url) as store:
        whole.run(store)
    whole.check(done=True)
    whole.remove()
    # Other operations begin with another fault.
    shift += OPERATIONS.index(kind)
    tried = places([message for message in proxy.seen if message != END], shift)
    if not THOROUGH:
        # Operations that follow each other have almost the same messages.
        tried = tried[shift % 2 :: 2]
    happened = 0
    for number, (message, place, fault) in enumerate(tried, 1):
        operation = kind(direct, session, number)
        proxy.fail_at(message, place, fault)
        with through(proxy, url) as store:
            failure = error_of(operation, store)
            happened += proxy.failed
            if failure is not None:
                context = f"{kind.__name__}, {fault.name} at {message} {place}: {failure}"
                assert fault is not Fault.DELAY, context
                assert operation.may_be_unknown or "unknown" not in str(failure), context
                operation.check(done=False)
                proxy.watch()
                operation.run(store)
        operation.check(done=True)
        operation.remove()
    # The number of messages of a kind, such as changed settings of the session, can differ from run to run.
    assert happened >= len(tried) - 3


@pytest.mark.parametrize(("fault", "written"), [(Fault.CUT_BEFORE, False), (Fault.CUT_AFTER, True)])
def test_a_put_whose_commit_has_no_answer_is_an_error_that_says_so(
    proxy: PostgresProxy, url: str, direct: Store, fault: Fault, written: bool
) -> None:
    table = direct.create_table("t", SCHEMA, "id")
    with through(proxy, url) as store:
        behind = store.table("t")
        behind.put({"id": "a", "price": 1})
        proxy.watch()
        behind.put({"id": "b", "price": 1})
        # The statement, its commit, a look at the connection, the version, its commit: each is one message of ADBC.
        commit = Counter(proxy.seen)[QUERY] - 4
        proxy.fail_at(QUERY, commit, fault)
        with pytest.raises(StoreError, match=r"unknown whether .* committed.*check whether the rows are there"):
            behind.put({"id": "c", "price": 1})
        assert (table.get({"id": "c"}) is not None) is written
