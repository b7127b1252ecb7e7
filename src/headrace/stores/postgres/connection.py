"""The connections of a process to a database: psycopg's for statements, ADBC's for rows as Arrow.

Transactions that fail with a temporary error are repeated. Idle connections are kept for later calls.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, LiteralString, TypeAlias, TypeVar
from weakref import WeakSet

import adbc_driver_postgresql.dbapi as adbc
import psycopg
from psycopg.conninfo import make_conninfo

from headrace.errors import HeadraceError, OptionError, StoreError
from headrace.stores.postgres.failures import failure_of, headrace_error
from headrace.stores.postgres.session import FACTS, Server
from headrace.stores.postgres.unrepresentable import NO_CHOICES, Choices
from headrace.support import failpoints
from headrace.support.finalizers import quiet_at_the_end
from headrace.support.retries import Retries

Result = TypeVar("Result")
Kind = TypeVar("Kind")
Bulk: TypeAlias = adbc.Connection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_IDLE_CONNECTIONS = 4
# After these times without a session of the server: idle connections are closed; a warning is logged.
_SCARCE_SECONDS, _SHOWN_SECONDS = 0.5, 4.0
_SCARCE_FOR_SECONDS = 60.0
_log = logging.getLogger("headrace")
# A server whose machine or network is gone sends no end of the connection: notice it within a minute, not two hours.
_KEEPALIVE = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
# Statements of psycopg read a few rows of the catalog. To plan them takes longer than to run them, and the server would
# plan those with an array for each call. The estimates of generic plans would make it compile them, for seconds (JIT).
_PLANS: LiteralString = (
    "SELECT pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false),"
    " pg_catalog.set_config('jit', 'off', false)"
)
_DEFAULTS = {"application_name": "headrace", "connect_timeout": "10", **_KEEPALIVE}


@dataclass(frozen=True)
class Address:
    """A database and the settings of its connections. It can be pickled, with the password; no message shows it.

    Attributes:
        parameters: parameters of libpq.
        retry_seconds: how long a call that fails with a temporary error is repeated.
        unrepresentable: what columns show for values that their types do not have in headrace.
    """

    parameters: Mapping[str, str] = field(repr=False)
    retry_seconds: float = 30.0
    unrepresentable: Choices = NO_CHOICES

    @property
    def url(self) -> str:
        """The address without secrets."""
        user, host, port = (self.parameters.get(name, "") for name in ("user", "host", "port"))
        shown_host = f"[{host}]" if ":" in host else host
        return (
            f"postgresql://{user and user + '@'}{shown_host}{port and ':' + port}/{self.parameters.get('dbname', '')}"
        )

    def conninfo(self, **parameters: str) -> str:
        """Return the connection string of libpq, with the password and further parameters."""
        try:
            return make_conninfo(**{**_DEFAULTS, **self.parameters, "client_encoding": "UTF8", **parameters})
        except psycopg.ProgrammingError:
            # The driver's message may contain a value.
            raise OptionError("libpq does not accept the options", valid=sorted(self.parameters)) from None


class _Pool(Generic[Kind]):
    """Idle connections of one kind. `deque` is atomic, so no lock is needed, which a fork could leave locked.

    Args:
        connect: opens a connection. The pool does not have its owner: both end with the last reference to the owner.
        lives: whether the server still has an idle connection.
    """

    def __init__(
        self,
        connect: Callable[[PostgresConnection], Kind],
        close: Callable[[Kind], None],
        lives: Callable[[Kind], bool],
    ) -> None:
        self._connect = connect
        self._close = close
        self._lives = lives
        self._idle: deque[Kind] = deque()

    def take(self, owner: PostgresConnection) -> Kind:
        """Return an idle connection that the server still has, or a new one of the owner."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect(owner)
            if self._lives(connection):
                return connection
            self.drop(connection)

    def give_back(self, connection: Kind, most: int) -> None:
        """Keep a connection for a later call, if fewer than ``most`` are idle."""
        if len(self._idle) < most:
            self._idle.append(connection)
        else:
            self._close(connection)

    def drop(self, connection: Kind) -> None:
        with suppress(Exception):
            self._close(connection)

    def clear(self) -> None:
        while self._idle:
            self.drop(self._idle.pop())

    @quiet_at_the_end
    def __del__(self) -> None:
        # Their own finalizers would warn.
        self.clear()


class PostgresConnection:
    """Transactions in a database. Threads can share it; a forked process opens its own connections.

    It can be pickled, with the password.

    Attributes:
        layouts: the tables that were last used, by name, each with a value that shows whether it has changed since;
            see `headrace.stores.postgres.tables.table`.
        definitions: what tunnels have seen of their tables, by the id of the tunnel and the form of its rows; see
            `headrace.stores.postgres.tunnels.seen_definitions`.
        checked: the groups of headrace's own tables that exist and are safe, by their schema and names; see
            `headrace.stores.postgres.own_tables`.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._open_pools()

    def __repr__(self) -> str:
        return f"<Connection to {self.address.url}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.address = state["address"]
        self._open_pools()

    def _open_pools(self) -> None:
        self._server: Server | None = None
        self._scarce_until = 0.0
        self.layouts: dict[str, tuple[Any, Any]] = {}
        self.definitions: dict[tuple[str, bool], Any] = {}
        self.checked: set[tuple[str, tuple[str, ...]]] = set()
        self._statements = _Pool(PostgresConnection._connect, psycopg.Connection.close, _lives)
        self._bulks = _Pool(PostgresConnection._connect_bulk, adbc.Connection.close, _bulk_lives)
        _connections.add(self)

    # -- transactions ------------------------------------------------------------------------------------

    def run(self, work: Callable[[psycopg.Connection], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a transaction of psycopg, and commit; repeat it after temporary errors.

        Args:
            repeatable: the function changes nothing more when it runs again after its commit. If the connection is
                lost during the commit, it runs again; otherwise that is an error.

        Raises:
            HeadraceError: an error of the database, see `headrace.stores.postgres.failures`.
        """

        def begun(session: psycopg.Connection) -> Result:
            self._begin(session)
            return work(session)

        return self._repeated(self._statements, begun, repeatable)

    def ask(self, work: Callable[[psycopg.Connection], Result]) -> Result:
        """Run a function whose statements are transactions of their own; repeat it after temporary errors.

        Such a statement is one exchange with the server. In `run`, the first one needs two, and the commit another one.
        Behind a pooler, they are one transaction, which has the settings of this module's sessions.
        """

        def alone(session: psycopg.Connection) -> Result:
            if self.server.pooled:
                self._begin(session)
                return work(session)
            session.autocommit = True
            try:
                return work(session)
            finally:
                # A lost connection cannot change; it is closed.
                if not session.closed:
                    session.autocommit = False

        return self._repeated(self._statements, alone, True)

    def run_bulk(
        self, work: Callable[[Bulk], Result], *, repeatable: bool = False, one_snapshot: bool = False
    ) -> Result:
        """Run a function in a transaction of ADBC, and commit; see `run`.

        Args:
            one_snapshot: all statements of the function have one snapshot.
        """

        def begun(bulk: Bulk) -> Result:
            self._begin_bulk(bulk, "REPEATABLE READ" if one_snapshot else None)
            return work(bulk)

        return self._repeated(self._bulks, begun, repeatable)

    @property
    def server(self) -> Server:
        """What the newest connection has learned about the server."""
        if self._server is None:
            self._give_back(self._statements, self._leased(self._statements))
        assert self._server is not None
        return self._server

    @contextmanager
    def reading(self) -> Iterator[Bulk]:
        """Lease a connection of ADBC for a read. It is kept if the block ends without an error."""
        connection = self._leased(self._bulks)
        complete = False
        try:
            self._begin_bulk(connection)
            yield connection
            connection.rollback()
            complete = True
        except Exception as error:
            raise self._translated(error) from None
        finally:
            if complete:
                self._give_back(self._bulks, connection)
            else:
                self._bulks.drop(connection)

    @property
    def may_idle(self) -> bool:
        """Whether unused connections may stay open: no pooler shares them, and the server has many others."""
        server = self.server
        return not (server.pooled or server.crowded) and monotonic() >= self._scarce_until

    def close(self) -> None:
        """Close the idle connections of this process; a later call opens new ones."""
        self._statements.clear()
        self._bulks.clear()

    # -- connections -------------------------------------------------------------------------------------

    def _repeated(self, pool: _Pool[Any], work: Callable[[Any], Result], repeatable: bool) -> Result:
        retries = Retries(self.address.retry_seconds, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)
        while True:
            connection = self._leased(pool)
            committing = False
            try:
                result = work(connection)
                committing = True
                failpoints.reach("uncommitted")
                connection.commit()
                failpoints.reach("committed")
            except BaseException as error:
                failure = failure_of(error)
                if failure is not None and failure.lost:
                    pool.drop(connection)
                    # All idle connections are older than the failure.
                    pool.clear()
                else:
                    self._rolled_back(pool, connection)
                if failure is None:
                    raise
                if committing and failure.lost and not repeatable:
                    raise StoreError(
                        f"it is unknown whether {self.address.url} committed a transaction",
                        received=failure.message,
                        remedy="check whether the rows are there before you repeat it",
                    ) from None
                if not failure.may_pass or not retries.wait(f"PostgreSQL: {failure.message}"):
                    raise headrace_error(failure, self.address.url) from None
            else:
                self._give_back(pool, connection)
                return result

    def _rolled_back(self, pool: _Pool[Any], connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:
            pool.drop(connection)
        else:
            self._give_back(pool, connection)

    def _give_back(self, pool: _Pool[Kind], connection: Kind) -> None:
        most = _IDLE_CONNECTIONS if monotonic() >= self._scarce_until else 0
        if most and isinstance(connection, adbc.Connection) and self.server.pooled:
            # ADBC begins a transaction at once, for which a pooler would keep a session of the server.
            try:
                connection.adbc_connection.set_autocommit(True)
            except adbc.Error:
                pool.drop(connection)
                return
        pool.give_back(connection, most)

    def _leased(self, pool: _Pool[Kind]) -> Kind:
        """Return a connection; repeat the attempt while the server starts or is not reachable."""
        retries = Retries(self.address.retry_seconds, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)
        while True:
            try:
                return pool.take(self)
            except Exception as error:
                failure = failure_of(error, connecting=True)
                if failure is None:
                    raise
                if failure.scarce:
                    self._release()
                if not failure.may_pass or not retries.wait(f"PostgreSQL: {failure.message}"):
                    raise headrace_error(failure, self.address.url) from None

    def _translated(self, error: Exception) -> Exception:
        failure = failure_of(error)
        return (
            error if failure is None or isinstance(error, HeadraceError) else headrace_error(failure, self.address.url)
        )

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Watch the begin of a connection: a pooler lets it wait, without an answer, until a session is free.

        The idle connections of this process may have the sessions: they are closed, and none is kept for some time.
        """
        if self._server is not None and not self._server.pooled:
            yield
            return
        connected = threading.Event()

        def watch() -> None:
            if connected.wait(_SCARCE_SECONDS):
                return
            self._release()
            if not connected.wait(_SHOWN_SECONDS):
                _log.warning(
                    "PostgreSQL: %s has had no free connection for %.0f s: all connections of its pooler are in use. "
                    "Give the pooler more (pool_size), or let it share them between transactions "
                    "(pool_mode = transaction)",
                    self.address.url,
                    _SCARCE_SECONDS + _SHOWN_SECONDS,
                )

        watcher = threading.Thread(target=watch, name="headrace-waits-for-postgres", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            connected.set()
            watcher.join()

    def _release(self) -> None:
        """Close the idle connections of this process, and keep none for some time: connections are scarce."""
        self._scarce_until = monotonic() + _SCARCE_FOR_SECONDS
        self.close()

    def _connect(self) -> psycopg.Connection:
        with self._waiting():
            return self._connected()

    def _connected(self) -> psycopg.Connection:
        connection = psycopg.connect(self.address.conninfo())
        try:
            # Each time: the settings of the role can be other ones than those of an earlier connection.
            self._server = _learned(connection)
            if self._server.pooled:
                # Prepared statements do not survive a pooler that changes servers between transactions.
                connection.prepare_threshold = None
                # BEGIN says it: the defaults of a session change its later transactions only.
                connection.rollback()
                connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
                connection.read_only = connection.deferrable = False
            # A pooler gives the connection a session of the server for its first statement.
            connection.execute(b"SELECT 1" if self._server.pooled else self._server.settings.encode())
            if not self._server.pooled:
                connection.execute(_PLANS)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_bulk(self) -> Bulk:
        server = self.server
        if server.pooled:
            if server.quotes:
                # A pooler accepts no settings of a connection, and ADBC reads names of types when it connects.
                raise StoreError(
                    f"{self.address.url} is behind a pooler, and quotes all names",
                    received="quote_all_identifiers = on",
                    valid="off, its default",
                    remedy="ALTER ROLE … (or DATABASE …) SET quote_all_identifiers = off",
                )
            with self._waiting():
                connection = adbc.connect(self.address.conninfo())
            connection.adbc_connection.set_autocommit(True)
            return connection
        connection = adbc.connect(self.address.conninfo(options=server.connecting))
        try:
            value_of(connection, server.settings)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin(self, connection: psycopg.Connection) -> None:
        """Give a transaction the settings that its session does not have behind a pooler."""
        if self.server.pooled:
            connection.execute(self.server.settings.encode())

    def _begin_bulk(self, bulk: Bulk, isolation: str | None = None) -> None:
        """Begin a transaction with its settings and isolation, which must be set before any query."""
        if self.server.pooled:
            bulk.adbc_connection.set_autocommit(False)
            level = isolation or "READ COMMITTED"
            execute(bulk, f"SET TRANSACTION ISOLATION LEVEL {level}, READ WRITE, NOT DEFERRABLE")
            value_of(bulk, self.server.settings)
        elif isolation is not None:
            execute(bulk, f"SET TRANSACTION ISOLATION LEVEL {isolation}")


def execute(bulk: Bulk, statement: str) -> None:
    """Execute a statement without rows; with an unread row the driver would begin a transaction again."""
    with bulk.cursor() as cursor:
        cursor.execute(statement)


def value_of(bulk: Bulk, query: str, *parameters: int) -> Any:
    """Return the value of a query that has one."""
    with bulk.cursor() as cursor:
        cursor.execute(query, parameters or None)
        return cursor.fetchone()[0]


def _learned(connection: psycopg.Connection) -> Server:
    row = connection.execute(FACTS).fetchone()
    assert row is not None
    process, path, synchronous, quotes, used, most = row
    info = connection.info
    return Server(
        info.server_version,
        info.options,
        process != info.backend_pid,
        path,
        synchronous != "off",
        quotes == "on",
        2 * used > int(most),
    )


def _lives(connection: psycopg.Connection) -> bool:
    """Return whether an idle connection has nothing to read: neither the end of the stream nor the server's farewell.

    It costs no exchange with the server. A notice of the server also counts; a new connection is then made for nothing.
    """
    if connection.closed:
        return False
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return not socket.poll(0)


def _bulk_lives(connection: Bulk) -> bool:
    """Return whether an idle connection answers. ADBC does not show its socket, so this is an exchange (40 µs)."""
    try:
        connection.adbc_current_db_schema  # noqa: B018 (a query outside of a transaction)
    except adbc.Error:
        return False
    return True


_connections: WeakSet[PostgresConnection] = WeakSet()
# Connections that a fork inherited. Closing one would end the session of the parent process.
_inherited: list[object] = []


def _after_fork() -> None:
    for connection in list(_connections):
        _inherited.append((connection._statements, connection._bulks))
        connection._open_pools()


os.register_at_fork(after_in_child=_after_fork)
