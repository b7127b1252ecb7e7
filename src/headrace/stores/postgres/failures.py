"""Errors of PostgreSQL as errors of headrace, for both drivers: psycopg and ADBC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

import psycopg
import pyarrow as pa
from adbc_driver_manager import Error as AdbcError

from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    OptionError,
    RowsNotWrittenError,
    SchemaError,
    StoreBusyError,
    StoreError,
    UnsupportedError,
)
from headrace.wire.pgoutput.errors import shown_otherwise

_SERIALIZATION = ("40001", "40P01")
# The server, a lock or a replication slot was busy before the statement had any effect.
_BUSY = (*_SERIALIZATION, "53300", "55006", "55P03", "57P03")
# 25P03 and 25P04: the server closed an idle or a long transaction.
_LOST = ("57P01", "57P02", "57P05", "25P03", "25P04")
# A statement of a connection that works: the server cannot connect to the server of a foreign table.
_FOREIGN = "08001"
# A value that psycopg does not send, such as a text with the character NUL.
_REFUSED_HERE = "22000"
# What the server calls an internal error, and Arrow's streams, which keep no state.
_UNKNOWN = "XX000"
_REFUSED = re.compile(
    r"authentication failed|no password supplied|pg_hba\.conf|role \".*\" (does not exist|is not permitted to log in)"
)
_NO_DATABASE = re.compile(r"database \".*\" does not exist")
# Messages of libpq about settings, certificates and files, which a repetition does not change.
_UNUSABLE = re.compile(
    r"certificate|does not match host name|does not support SSL|SSL was required|invalid .*value: |invalid port number"
    r"|definition of service|service file|private key|channel binding|syntax error",
    re.IGNORECASE,
)
# The prefix of ADBC before the server's message, and the state after it.
_ADBC_PREFIX = re.compile(r"^[A-Z_]+: (\[libpq\] )?(.*?: ERROR: +)?", re.DOTALL)
_STREAM_ERROR = "[libpq]"
# While the server decodes a change. It knows no publication that is younger than the change.
_UNDECODED = re.compile(r"(?!publication)(.*?) CONTEXT: +slot .*, in the change callback", re.DOTALL)
_SLOT_IN_USE = re.compile(r"replication slot .* is active for PID")
COPIES = "; a mirror, and a query with readAs=table, also need a new target and a new checkpoint location"
"""The end of the remedy of a loss: a copy of a table has all changes, and does not take ``failOnDataLoss=false``."""
UNREADABLE = "headrace cannot read column "
"""The begin of the text that a query casts to a type, to fail with the name of a column."""
UNREADABLE_KEY = f"{UNREADABLE}of the key "
ROUNDED = "headrace does not round column "
"""The same for a value that is written."""
FIXED = "headrace cannot change column "
"""The same for a row whose stored value of a column cannot be set."""
_UNREADABLE = re.compile(re.escape(UNREADABLE) + r"(of the key )?(.*?): (.+)\"(?: DETAIL: .*)?$", re.DOTALL)
_ROUNDED = re.compile(re.escape(ROUNDED) + r"(.*?): (.+)\"", re.DOTALL)
_FIXED = re.compile(re.escape(FIXED) + r"(.+)\"", re.DOTALL)
_NOTHING_APPLIED = "nothing of the write was applied"
# A connection that fails has no SQLSTATE: of the server, and of pgbouncer.
_SCARCE = re.compile(
    r"too many (clients|connections)|remaining connection slots|no more connections allowed|_wait_timeout"
)
# pgbouncer refuses parameters of the connection that it does not know.
_PARAMETER = re.compile(r"unsupported startup parameter(?: in options)?:? *(\S*)")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_RULES = re.compile(r"\brules?\b")
_USED = re.compile(r"cannot alter type of a column used ")
_NOT_UTF8 = re.compile(r'invalid byte sequence for encoding "UTF8": (0x[0-9a-f]+( 0x[0-9a-f]+)*)')


class MissingRelationError(NotFoundError):
    """A statement names a table or schema that does not exist."""


class Passes(Enum):
    """Whether rows that violate a constraint may satisfy it in another way."""

    NEVER = auto()
    TOGETHER = auto()
    """Together with the other rows of the write: a row that another one needs."""
    MOVED = auto()
    """If existing rows of the write give their values free first: a unique or excluded value."""
    IF_REPLACED = auto()
    """If the row is deleted and inserted: a value that no update can set."""


class ViolationError(RowsNotWrittenError):
    """Rows violate a constraint.

    Attributes:
        passes: in which way they may satisfy it.
    """

    passes = Passes.NEVER


class RefusedValueError(SchemaError):
    """PostgreSQL does not accept a value of a row, and does not name the column.

    Attributes:
        message: the server's message.
    """

    message = ""


class NotNullError(SchemaError):
    """A row has no value for a NOT NULL column."""


SAFE_FILTER = (
    "A filter of rows, which option where makes, must fail for no row: "
    "CASE WHEN n <> 0 THEN 1000 / n > 10 ELSE false END"
)
"""The remedy for a filter that fails."""
REFUSALS = (RowsNotWrittenError, RefusedValueError, NotNullError)
"""The errors that are about a row of a write."""

_PASSES = {"23505": Passes.MOVED, "23P01": Passes.MOVED, "23503": Passes.TOGETHER}


@dataclass(frozen=True)
class Failure:
    """An error of a driver.

    Attributes:
        state: the SQLSTATE; empty if the connection failed.
        message: the server's message.
        detail: the server's detail, which may contain the values of a row; empty if there is none.
        hint: what the server proposes; empty if there is nothing.
        constraint: the violated constraint; empty if there is none.
        table: the table of the constraint, as in a statement; empty if there is none.
        connecting: there was no connection yet.
        needs_password: the server wanted a password, and there was none.
    """

    state: str
    message: str
    detail: str = ""
    hint: str = ""
    constraint: str = ""
    table: str = ""
    connecting: bool = False
    needs_password: bool = False

    @property
    def lost(self) -> bool:
        """Whether the connection is lost."""
        return not self.connecting and (
            not self.state or (self.state[:2] == "08" and self.state != _FOREIGN) or self.state in _LOST
        )

    @property
    def may_pass(self) -> bool:
        """Whether a repetition of the transaction can succeed."""
        if self.unusable:
            return False
        if self.state:
            return self.state in (*_BUSY, *_LOST) or self.lost
        return not self.refused and not self.unusable and not _NO_DATABASE.search(self.message)

    @property
    def scarce(self) -> bool:
        """Whether the server or a pooler has no connection left."""
        return bool(_SCARCE.search(self.message))

    @property
    def refused(self) -> bool:
        """Whether the server does not accept the user or the password.

        SQLSTATE 28000 and 28P01 say so. But libpq gives no SQLSTATE for a connection that fails, only the server's
        message, through both drivers. A server with messages in another
        language than English refuses a wrong password like one that is not reachable.
        """
        return self.state[:2] == "28" or self.needs_password or bool(_REFUSED.search(self.message))

    @property
    def unusable(self) -> bool:
        """Whether there is no connection with these settings: TLS, certificates, services."""
        return self.connecting and bool(_UNUSABLE.search(self.message) or _PARAMETER.search(self.message))


def failure_of(error: BaseException, *, connecting: bool = False) -> Failure | None:
    """Return an error of a driver as a `Failure`; None for other errors."""
    if isinstance(error, psycopg.Error):
        diagnosis = error.diag
        return Failure(
            error.sqlstate or (_REFUSED_HERE if isinstance(error, psycopg.DataError) else ""),
            diagnosis.message_primary or _first_line(str(error)),
            diagnosis.message_detail or "",
            diagnosis.message_hint or "",
            diagnosis.constraint_name or "",
            table_text(diagnosis.schema_name, diagnosis.table_name),
            connecting,
            connecting and error.pgconn is not None and error.pgconn.needs_password,
        )
    if isinstance(error, AdbcError):
        details = {
            (key.decode() if isinstance(key, bytes) else key): value.decode("utf-8", "replace")
            for key, value in error.details
            if isinstance(value, bytes)
        }
        return Failure(
            (error.sqlstate or "").strip("\0"),
            details.get("PG_DIAG_MESSAGE_PRIMARY") or _ADBC_PREFIX.sub("", _first_line(str(error))),
            details.get("PG_DIAG_MESSAGE_DETAIL", ""),
            details.get("PG_DIAG_MESSAGE_HINT", ""),
            details.get("PG_DIAG_CONSTRAINT_NAME", ""),
            table_text(details.get("PG_DIAG_SCHEMA_NAME"), details.get("PG_DIAG_TABLE_NAME")),
            connecting,
        )
    if isinstance(error, OSError | pa.ArrowException) and _STREAM_ERROR in str(error):
        # An error amid the rows of a statement passes through Arrow's stream, which keeps its text only.
        text = _first_line(str(error))
        state = "55006" if _SLOT_IN_USE.search(text) else _UNKNOWN if "ERROR:" in text else ""
        message, _, hint = (text.partition("ERROR: ")[2] or text).partition(" HINT: ")
        return Failure(state, message.strip(), hint=hint.strip())
    return None


def headrace_error(failure: Failure, server: str) -> HeadraceError:
    """Return a failure as an error of headrace.

    Args:
        server: the server and database for messages, without a secret.
    """
    state, message = failure.state, failure.message
    if not state or failure.lost or failure.unusable or failure.scarce:
        return _connection_error(failure, server)
    received = message if state == _UNKNOWN else f"{message} ({state})"
    if unreadable := _UNREADABLE.search(message):
        return SchemaError(
            f"column {unreadable[2]!r} has a value that Arrow cannot represent",
            received=unreadable[3][:200],
            valid="finite dates, times and decimals; arrays of one dimension",
            remedy=shown_otherwise(unreadable[2], in_key=True)
            if unreadable[1]
            else f"leave the column out, or {shown_otherwise(unreadable[2])}",
        )
    if rounded := _ROUNDED.search(message):
        refused = RefusedValueError(
            f"the type of column {rounded[1]!r} would round or shorten a value",
            received=rounded[2][:200],
            remedy="write fewer digits or characters, or widen the column",
        )
        refused.message = "its type would round or shorten it"
        return refused
    if fixed := _FIXED.search(message):
        error = ViolationError(
            f"an existing row has another value of column {fixed[1]!r}, which is GENERATED ALWAYS AS IDENTITY",
            remedy=f"{_NOTHING_APPLIED}: ALTER TABLE … ALTER COLUMN {_identifier(fixed[1])} SET GENERATED BY DEFAULT",
        )
        error.passes = Passes.IF_REPLACED
        return error
    if other := _NOT_UTF8.search(message):
        return SchemaError(
            "the database has a text that is not UTF-8",
            received=f"bytes {other[1]}",
            valid="UTF-8; a database of encoding SQL_ASCII does not check it",
            remedy="leave the column out; or correct its texts, for example of Latin 1: "
            "UPDATE … SET c = convert_from(convert(convert_to(c, 'SQL_ASCII'), 'LATIN1', 'UTF8'), 'SQL_ASCII')",
        )
    if undecoded := _UNDECODED.match(message):
        return UnsupportedError(
            "the server cannot decode a change for a slot, and so none of the later ones",
            received=undecoded[1],
            remedy=f"create a new tunnel. {SAFE_FILTER}",
        )
    if state in _BUSY:
        return StoreBusyError(f"PostgreSQL could not do it now: {message}", received=state)
    match state[:2]:
        # A domain: other constraints name their table.
        case "23" if state in ("23502", "23514") and not failure.table:
            return _refused(failure)
        case "23" if state == "23502":
            return NotNullError(f"a NOT NULL column has no value: {message}", received=failure.detail or None)
        case "23":
            return _violation(failure)
        # 54: the value of a key is too long for an index.
        case "22" | "21" | "54":
            return _refused(failure)
        case "28":
            return _connection_error(failure, server)
    match state:
        case "42P01" | "3F000":
            return MissingRelationError("no such table or schema", received=received)
        case "42704":
            return NotFoundError("no such type", received=received)
        case "42P07" | "42P06" | "42710":
            return AlreadyExistsError("the name is in use", received=received)
        case "42701" | "42703" | "42611" | "428C9" | "42P16":
            return SchemaError("PostgreSQL does not accept the columns", received=received)
        case "42501":
            return StoreError(
                f"the user has no right to do this in {server}",
                received=received,
                remedy=_missing_right(message),
            )
        case "08001":
            return StoreError(
                f"{server} has a foreign table whose server it cannot reach",
                received=" ".join(f"{message}: {failure.detail}".split()).rstrip(":"),
                remedy="start that server, or correct it by ALTER SERVER and ALTER USER MAPPING",
            )
        case "25006":
            return StoreError(
                f"{server} is read-only",
                received=received,
                remedy="connect to the primary server, for example with target_session_attrs=read-write",
            )
        case "P0001":
            return RowsNotWrittenError(
                f"a function of the database has raised an error: {message}",
                received=failure.detail or None,
                remedy=failure.hint or _NOTHING_APPLIED,
            )
        case "0A000" if _USED.match(message):
            return _used("use the column, so its type cannot change", failure)
        case "2BP01":
            return _used("depend on what is to be dropped", failure)
        case "0A000" if _RULES.search(message):
            return UnsupportedError(
                "a rule of the table rewrites the statements of a write",
                received=message,
                remedy="DROP RULE … ON …, and use a trigger that returns the row in its place",
            )
        case "0A000":
            return UnsupportedError("PostgreSQL does not support this", received=received)
    return StoreError(f"PostgreSQL failed in {server}", received=received, remedy=failure.hint or None)


def _refused(failure: Failure) -> RefusedValueError:
    error = RefusedValueError(
        f"PostgreSQL does not accept a value: {failure.message}",
        received=failure.detail or None,
        remedy=failure.hint or None,
    )
    error.message = failure.message
    return error


def _violation(failure: Failure) -> HeadraceError:
    """Return the error for rows that violate a constraint: with the row, the constraint and a remedy."""
    state, name, table = failure.state, failure.constraint, failure.table
    if state == "23514" and not name:
        return ViolationError(
            f"table {table} has no partition for a row",
            received=failure.detail or failure.message,
            remedy=f"{_NOTHING_APPLIED}: CREATE TABLE … PARTITION OF {table} FOR VALUES … (or DEFAULT)",
        )
    quoted = _identifier(name)
    remedy = "correct the row, or the constraint"
    if state in ("23505", "23P01"):
        kind = "UNIQUE" if state == "23505" else "EXCLUDE"
        remedy = (
            "correct the row; or, if a row of the write takes the value of another one, let the server check the "
            f"constraint at the commit: ALTER TABLE {table} DROP CONSTRAINT {quoted}, "
            f"ADD CONSTRAINT {quoted} {kind} (…) DEFERRABLE"
        )
    elif state == "23503":
        remedy = (
            "write the row that the other one needs first, or let the server check the constraint at the commit: "
            f"ALTER TABLE {table} ALTER CONSTRAINT {quoted} DEFERRABLE"
        )
    error = ViolationError(
        f"rows violate constraint {name!r}: {failure.message}",
        received=failure.detail or None,
        remedy=f"{_NOTHING_APPLIED}: {remedy}",
    )
    error.passes = _PASSES.get(state, Passes.NEVER)
    return error


def _used(how: str, failure: Failure) -> UnsupportedError:
    """Return the error for a change of a table that other objects do not permit, with the names of these objects."""
    return UnsupportedError(
        f"other objects of the database {how}",
        received=" ".join(failure.detail.split()) or failure.message,
        remedy="drop them, and create them again after the change; a publication headrace_<id> is that of a tunnel "
        "with option columns, exclude or where: drop the tunnel",
    )


def _missing_right(message: str) -> str:
    if "row-level security policy for" in message:
        return "ALTER ROLE … BYPASSRLS; the table's owner needs only ALTER TABLE … NO FORCE ROW LEVEL SECURITY"
    if message.startswith("must be owner"):
        return "connect as its owner, or let the owner GRANT its role to the user"
    return "let its owner GRANT the right; `headrace doctor --table …` prints the statements"


def table_text(schema: str | None, name: str | None) -> str:
    """Return a table as it is in a statement; empty without one."""
    return f"{_identifier(schema or 'public')}.{_identifier(name)}" if name else ""


def _identifier(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _connection_error(failure: Failure, server: str) -> HeadraceError:
    message = failure.message
    if failure.refused:
        return OptionError(
            f"{server} does not accept the user or the password",
            received=message,
            remedy="check the user in the address, ~/.pgpass, PGPASSWORD, option password, sslmode and the server's "
            "pg_hba.conf",
        )
    if failure.state == "3D000" or _NO_DATABASE.search(message):
        return NotFoundError("no such database", received=message)
    if parameter := _PARAMETER.search(message):
        return StoreError(
            f"the pooler at {server} does not accept a parameter of the connection",
            received=message,
            remedy="leave out option options (or the environment variable PGOPTIONS), or add "
            f"{parameter[1] or 'options'} to ignore_startup_parameters of pgbouncer",
        )
    if failure.scarce:
        return StoreError(
            f"no connection to {server} is free",
            received=message,
            remedy="give the server (max_connections) or the pooler (pool_size) more connections, or use fewer threads",
        )
    if failure.unusable:
        return StoreError(
            f"no connection to {server} with these settings",
            received=message,
            remedy="check sslmode, sslrootcert, sslcert, sslkey (in Spark sslMode, sslRootCert), the service file and "
            "libpq's environment",
        )
    if failure.connecting:
        return StoreError(f"no connection to {server}", received=message, remedy="check the host, the port and TLS")
    return StoreError(f"the connection to {server} broke", received=message)


def _first_line(text: str) -> str:
    return " ".join(text.split())[:500]
