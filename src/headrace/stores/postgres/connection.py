"""The connections of a process to a database: psycopg's for statements, ADBC's for rows as Arrow.

Transactions that fail with a temporary error are repeated. Idle connections are kept for later calls.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

import adbc_driver_postgresql.dbapi as adbc
import psycopg
from psycopg.conninfo import make_conninfo

from headrace import failpoints
from headrace.errors import HeadraceError, OptionError, StoreError
from headrace.retries import Retries
from headrace.stores.postgres.failures import failure_of, headrace_error

Result = TypeVar("Result")
Kind = TypeVar("Kind")
Bulk: TypeAlias = adbc.Connection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_IDLE_CONNECTIONS = 4
# Texts of values that headrace parses must not depend on the settings of a role or database.
_SESSION = (
    "-c TimeZone=UTC -c DateStyle=ISO,YMD -c IntervalStyle=postgres -c extra_float_digits=1 "
    "-c standard_conforming_strings=on"
)
# A server whose machine or network is gone sends no end of the connection: notice it within a minute, not two hours.
_KEEPALIVE = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_DEFAULTS = {"application_name": "headrace", "connect_timeout": "10", "options": _SESSION, **_KEEPALIVE}


@dataclass(frozen=True)
class Address:
    """A database and the settings of its connections. It can be pickled, with the password; no message shows it.

    Attributes:
        parameters: parameters of libpq.
        retry_seconds: how long a call that fails with a temporary error is repeated.
    """

    parameters: Mapping[str, str] = field(repr=False)
    retry_seconds: float = 30.0

    @property
    def url(self) -> str:
        """The address without secrets."""
        user, host, port = (self.parameters.get(name, "") for name in ("user", "host", "port"))
        shown_host = f"[{host}]" if ":" in host else host
        return (
            f"postgresql://{user and user + '@'}{shown_host}{port and ':' + port}/{self.parameters.get('dbname', '')}"
        )

    @property
    def conninfo(self) -> str:
        """The connection string of libpq, with the password."""
        try:
            return make_conninfo(**{**_DEFAULTS, **self.parameters})
        except psycopg.ProgrammingError:
            # The driver's message may contain a value.
            raise OptionError("libpq does not accept the options", valid=sorted(self.parameters)) from None


class _Pool(Generic[Kind]):
    """Idle connections of one kind. `deque` is atomic, so no lock is needed, which a fork could leave locked.

    Args:
        lives: whether the server still has an idle connection.
    """

    def __init__(
        self, connect: Callable[[], Kind], close: Callable[[Kind], None], lives: Callable[[Kind], bool]
    ) -> None:
        self._connect = connect
        self._close = close
        self._lives = lives
        self._idle: deque[Kind] = deque()

    def take(self) -> Kind:
        """Return an idle connection that the server still has, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            if self._lives(connection):
                return connection
            self.drop(connection)

    def give_back(self, connection: Kind) -> None:
        if len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            self._close(connection)

    def drop(self, connection: Kind) -> None:
        with suppress(Exception):
            self._close(connection)

    def clear(self) -> None:
        while self._idle:
            self.drop(self._idle.pop())


class Connection:
    """Transactions in a database. Threads can share it; a forked process opens its own connections.

    It can be pickled, with the password.
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
        self._statements = _Pool(self._connect, psycopg.Connection.close, _lives)
        self._bulks = _Pool(self._connect_bulk, adbc.Connection.close, _bulk_lives)
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
        return self._repeated(self._statements, work, repeatable)

    def ask(self, work: Callable[[psycopg.Connection], Result]) -> Result:
        """Run a function whose statements are transactions of their own; repeat it after temporary errors.

        Such a statement is one exchange with the server. In `run`, the first one needs two, and the commit another one.
        """

        def alone(session: psycopg.Connection) -> Result:
            session.autocommit = True
            try:
                return work(session)
            finally:
                # A lost connection cannot change; it is closed.
                if not session.closed:
                    session.autocommit = False

        return self._repeated(self._statements, alone, True)

    def run_bulk(self, work: Callable[[Bulk], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a transaction of ADBC, and commit; see `run`."""
        return self._repeated(self._bulks, work, repeatable)

    @contextmanager
    def autocommit(self) -> Iterator[psycopg.Connection]:
        """Lease a connection of psycopg for statements that cannot run in a transaction."""
        connection = self._leased(self._statements)
        kept = False
        try:
            connection.autocommit = True
            yield connection
            connection.autocommit = False
            kept = True
        except Exception as error:
            raise self._translated(error) from None
        finally:
            (self._statements.give_back if kept else self._statements.drop)(connection)

    @contextmanager
    def reading(self) -> Iterator[Bulk]:
        """Lease a connection of ADBC for a read. It is kept if the block ends without an error."""
        connection = self._leased(self._bulks)
        kept = False
        try:
            yield connection
            connection.rollback()
            kept = True
        except Exception as error:
            raise self._translated(error) from None
        finally:
            (self._bulks.give_back if kept else self._bulks.drop)(connection)

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
                pool.give_back(connection)
                return result

    def _rolled_back(self, pool: _Pool[Any], connection: Any) -> None:
        try:
            connection.rollback()
        except Exception:
            pool.drop(connection)
        else:
            pool.give_back(connection)

    def _leased(self, pool: _Pool[Kind]) -> Kind:
        """Return a connection; repeat the attempt while the server starts or is not reachable."""
        retries = Retries(self.address.retry_seconds, first_pause=_FIRST_PAUSE, longest_pause=_LONGEST_PAUSE)
        while True:
            try:
                return pool.take()
            except Exception as error:
                failure = failure_of(error, connecting=True)
                if failure is None:
                    raise
                if not failure.may_pass or not retries.wait(f"PostgreSQL: {failure.message}"):
                    raise headrace_error(failure, self.address.url) from None

    def _translated(self, error: Exception) -> Exception:
        failure = failure_of(error)
        return (
            error if failure is None or isinstance(error, HeadraceError) else headrace_error(failure, self.address.url)
        )

    def _connect(self) -> psycopg.Connection:
        # Prepared statements do not survive a pooler that changes servers between transactions.
        return psycopg.connect(self.address.conninfo, prepare_threshold=None)

    def _connect_bulk(self) -> Bulk:
        return adbc.connect(self.address.conninfo)


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


_connections: WeakSet[Connection] = WeakSet()
# Connections that a fork inherited. Closing one would end the session of the parent process.
_inherited: list[object] = []


def _after_fork() -> None:
    for connection in list(_connections):
        _inherited.append((connection._statements, connection._bulks))
        connection._open_pools()


os.register_at_fork(after_in_child=_after_fork)
