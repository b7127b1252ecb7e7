"""All errors of headrace.

::

    HeadraceError
     +-- OptionError            an option, argument or address is missing or invalid
     +-- SchemaError            columns, keys or rows do not fit the table
     +-- SqlError               a statement cannot be parsed or run; carries line and column
     +-- QueryLimitError        a query needs more time or memory than it may use
     +-- NotFoundError          a store, table, tunnel, scan or stream does not exist
     +-- AlreadyExistsError     the name is in use
     +-- UnsupportedError       the store, or this version, cannot do it
     +-- MissingDependencyError an optional package is not installed
     +-- DataLossError          requested rows no longer exist
     +-- StateMismatchError     changes do not fit the kept state of a followed query
     +-- BatchFailedError       a batch failed with an error that is too long for Spark
     +-- NumericOverflowError   a number does not fit its type
     +-- StoreError             the store failed
     |    +-- StoreBusyError    (retry) another process holds the store
     |    +-- RowsNotWrittenError  the store rejected some rows of a write
     |    +-- StoreDamagedError files or records are invalid
     +-- LostRaceError          (retry) another reader recorded the end of a batch first
     +-- PublicationError       staged rows cannot be published
     +-- TunnelTakenError       another query, or clients, have started to read the tunnel
     +-- ClientGoneError        a client of a tunnel has timed out or is closed
     +-- OffsetConflictError    another reader has moved a consumer
     +-- SessionEpochError      a producer's session was opened again
     +-- SequenceNumberError    invalid numbers of a producer's rows, or of a client's saves

The attribute ``retryable`` of a type says whether a retry can succeed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any, ClassVar


class HeadraceError(Exception):
    """The base of all errors. A message has up to four parts.

    Args:
        problem: the problem, in one sentence without a full stop.
        received: the invalid value; never a value that may contain a secret. Passwords in addresses and connection
            strings, which can be any value by mistake, become ``***``.
        valid: the valid values, as a text or a list.
        remedy: an action that solves the problem, with the option or command.

    Examples:
        >>> try:
        ...     headrace.open("shop", synchronus="off")
        ... except headrace.HeadraceError as error:
        ...     print(type(error).__name__, error.problem, error.received, error.valid, error.remedy, sep=" | ")
        OptionError | unknown option of an embedded store | 'synchronus' | synchronous | did you mean synchronous?
    """

    retryable: ClassVar[bool] = False

    def __init__(
        self,
        problem: str,
        *,
        received: object = None,
        valid: str | Iterable[object] | None = None,
        remedy: str | None = None,
    ) -> None:
        problem = without_passwords(printable(problem))
        self.problem = problem
        self.received = None if received is None else _cut(printable(received), _LONGEST_RECEIVED)
        if valid is None or isinstance(valid, str):
            self.valid = None if valid is None else printable(valid)
        else:
            self.valid = ", ".join(printable(value) for value in valid) or "nothing exists yet"
        self.remedy = remedy = None if remedy is None else printable(remedy)
        parts = [problem]
        if self.received is not None:
            parts.append(f"received: {self.received}")
        if self.valid is not None:
            parts.append(f"valid: {self.valid}")
        if remedy is not None:
            parts.append(remedy)
        super().__init__("; ".join(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are sent between processes (Spark workers, multiprocessing).
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


_SKIPS = "failOnDataLoss=false"
_LONGEST_RECEIVED = 1000
_LONGEST_SHOWN = 100
# ``//user:password@host``, and ``password=…`` of a connection string.
_PASSWORD = re.compile(r"(//[^/@:\s]*:)[^\s'\"]+(?=@)|(password=)[^&;,\s'\"]+", re.IGNORECASE)


def shown(value: object) -> str:
    """Return a value for a message, shortened. The type follows, unless the value is a text."""
    if type(value) is str:
        return _cut(repr(value), _LONGEST_SHOWN)
    try:
        text = ascii(value)
    except Exception:
        # An integer with too many digits for Python, or a class whose repr fails.
        text = f"{value.bit_length()} bits" if isinstance(value, int) else "not printable"
    return f"{_cut(text, _LONGEST_SHOWN)} ({type(value).__name__})"


def printable(value: object) -> str:
    """Return the text of a value in a form that can be encoded: surrogates become escapes."""
    try:
        text = str(value)
    except Exception:
        return shown(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def without_passwords(text: str) -> str:
    """Return a text in which passwords of addresses and connection strings are ``***``."""
    return _PASSWORD.sub(r"\1\2***", text)


def _cut(text: str, most: int) -> str:
    # A part of a password would not be found.
    text = without_passwords(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _rebuild(kind: type[HeadraceError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


_OWN_ERROR = re.compile(r"^headrace\.(?:\w+\.)*(\w+Error: .+)$", re.MULTILINE)


def own_error(text: str) -> str | None:
    """Return the last headrace error in a traceback as ``Name: message``; None if there is none.

    Spark sends an error of a Python worker to the driver as the text of its traceback.
    """
    found = _OWN_ERROR.findall(text)
    return found[-1] if found else None


def own_message(text: str) -> str | None:
    """Return the message of the last headrace error in a traceback; None if there is none."""
    found = own_error(text)
    return None if found is None else found.partition(": ")[2]


_LABELS = ("; received: ", "; valid: ")


def remedy_in(message: str) -> str | None:
    """Return the remedy in the message of a headrace error, which is its last part; None if it has none."""
    labelled = max(message.rfind(label) for label in _LABELS)
    separator = message.find("; ", labelled + 1 if labelled >= 0 else 0)
    return message[separator + 2 :] if separator >= 0 else None


class OptionError(HeadraceError, ValueError):
    """An option, argument or address is missing or invalid.

    Examples:
        >>> try:
        ...     headrace.open("gopher://shop")
        ... except headrace.OptionError as error:
        ...     print(error.problem)
        unknown kind of store
    """


class SchemaError(HeadraceError, ValueError):
    """Columns, keys or rows do not fit the table or queue.

    Examples:
        >>> try:
        ...     orders.put([{"id": "o3", "cost": 1.0}])
        ... except headrace.SchemaError as error:
        ...     print(error.problem)
        the table does not have a column of the rows
    """


_LONGEST_LINE = 500


class SqlError(HeadraceError):
    """A statement cannot be parsed or run.

    ``line`` and ``column`` start at 1. The message ends with the line, and a caret under the column.

    Examples:
        >>> try:
        ...     headrace.sql(spark).run("CREATE SCAN now ON orders USING STREAMS")
        ... except headrace.SqlError as error:
        ...     print(error.line, error.column)
        1 33
    """

    def __init__(
        self,
        problem: str,
        *,
        text: str | None = None,
        offset: int | None = None,
        received: object = None,
        valid: str | Iterable[object] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem, received=received, valid=valid, remedy=remedy)
        self.line: int | None = None
        self.column: int | None = None
        if text is not None and offset is not None:
            offset = min(offset, len(text))
            before = text[:offset]
            self.line = before.count("\n") + 1
            self.column = offset - (before.rfind("\n") + 1) + 1
            excerpt, index = _excerpt(text.split("\n")[self.line - 1], self.column - 1)
            caret = "".join("\t" if char == "\t" else " " for char in excerpt[:index]) + "^"
            where = f"line {self.line}, column {self.column}"
            self.args = (f"{where}: {self.args[0]}\n  {printable(excerpt)}\n  {caret}",)


def _excerpt(line: str, index: int) -> tuple[str, int]:
    """Return a line, or the part of a long line around an index, and the index in that part."""
    if len(line) <= _LONGEST_LINE:
        return line, index
    first = max(0, min(index - _LONGEST_LINE // 2, len(line) - _LONGEST_LINE))
    before, after = "…" if first else "", "…" if first + _LONGEST_LINE < len(line) else ""
    return f"{before}{line[first : first + _LONGEST_LINE]}{after}", index - first + len(before)


class QueryLimitError(HeadraceError):
    """A query needs more time or memory than it may use.

    Examples:
        >>> try:
        ...     store.query("SELECT count(*) FROM range(1000000000000)", timeout_seconds=0.1)
        ... except headrace.QueryLimitError as error:
        ...     print(error.problem)
        the query takes longer than it may
    """


class NotFoundError(HeadraceError, LookupError):
    """A store, table, tunnel, scan or stream does not exist.

    Examples:
        >>> try:
        ...     store.table("missing")
        ... except headrace.NotFoundError as error:
        ...     print(error.problem)
        no such table
    """


class AlreadyExistsError(HeadraceError):
    """The name is in use.

    Examples:
        >>> try:
        ...     store.create_consumer("reader")
        ... except headrace.AlreadyExistsError as error:
        ...     print(error.problem)
        a consumer of this name already exists
    """


class InUseError(HeadraceError):
    """A table, queue, consumer or tunnel cannot be dropped without force, because others use it.

    Examples:
        >>> sql = headrace.sql(spark)
        >>> try:
        ...     sql.run('''
        ...         CREATE QUEUE IF NOT EXISTS clicks (user STRING, page STRING) OPTIONS (store = "shop");
        ...         DROP QUEUE clicks;
        ...     ''')
        ... except headrace.InUseError as error:
        ...     print(error.received)
        consumer reader
    """


class UnsupportedError(HeadraceError):
    """The store, or this version of headrace, does not support the operation.

    Examples:
        >>> try:
        ...     store.diagnose("orders")
        ... except headrace.UnsupportedError as error:
        ...     print(error.problem)
        doctor checks no tables of stores of this kind
    """


class MissingDependencyError(HeadraceError, ImportError):
    """An optional package is not installed; the remedy names the pip command.

    Examples:
        >>> try:
        ...     rows = store.query("SELECT count(*) AS n FROM orders")
        ... except headrace.MissingDependencyError as error:
        ...     print(error.remedy)  # pip install 'headrace[query]'
    """


class DataLossError(HeadraceError):
    """Requested rows no longer exist: they were trimmed, have expired or were dropped.

    Examples:
        >>> addresses = clicks.append([{"user": "u1", "page": "/"}], partition=0)
        >>> removed = clicks.trim(0, before=1)
        >>> try:
        ...     clicks.read(0, first_row=0)
        ... except headrace.DataLossError as error:
        ...     print(error.problem)
        rows of queue 'clicks' were trimmed before they were read
    """

    def with_option(self, name: str) -> DataLossError:
        """Return the error with the name that option ``failOnDataLoss=false`` has for another kind of reader."""
        if self.remedy is None or _SKIPS not in self.remedy:
            return self
        found = copy.copy(self)
        found.remedy = self.remedy.replace(_SKIPS, name)
        found.args = (str(self).replace(_SKIPS, name),)
        return found


class StateMismatchError(HeadraceError):
    """Changes do not fit the kept state of a followed query, for example a row leaves a group that it never entered.

    Examples:
        The text of the exception that ended a query of Spark has the name:

        >>> headrace.StateMismatchError.__name__ in str(query.exception())
        False
    """


class ExpressionError(HeadraceError, ValueError):
    """An expression of a query fails for the values of a row.

    Examples:
        Spark shows it in the exception that ends a query:

        >>> version = orders.put([{"id": "free", "price": 0.0}])
        >>> ratios = store.create_table("ratios", {"id": "string", "ratio": "double"}, "id")
        >>> now = spark.readStream.format("headrace").options(store="shop", tunnel="stats", readAs="table").load()
        >>> text = "SELECT id, 1 / price AS ratio FROM now"
        >>> stream = headrace.follow(
        ...     spark, text, scans={"now": now}, store="shop", table="ratios", checkpoint="checkpoints/ratios"
        ... )
        >>> try:
        ...     stream.trigger(availableNow=True).start().awaitTermination()
        ... except Exception as error:
        ...     print(headrace.ExpressionError.__name__ in str(error), "expression 1 / price" in str(error))
        True True
    """


class BatchFailedError(HeadraceError):
    """A batch of a stream failed. The log has the whole error, which is too long for Spark.

    Examples:
        The text of the exception that ended a query of Spark has the name:

        >>> headrace.BatchFailedError.__name__ in str(query.exception())
        False
    """


class NumericOverflowError(HeadraceError, ArithmeticError):
    """A number does not fit its type.

    Examples:
        Spark shows it in the exception that ends a query:

        >>> sizes = store.create_table("sizes", {"id": "long", "user": "string", "size": "long"}, "id", pre_images=True)
        >>> version = sizes.put([{"id": 1, "user": "u1", "size": 2**63 - 1}, {"id": 2, "user": "u1", "size": 1}])
        >>> sums_tunnel = store.create_tunnel("sizes", "sums")
        >>> sums = store.create_table("sums", {"user": "string", "size": "long"}, "user")
        >>> now = spark.readStream.format("headrace").options(store="shop", tunnel="sums", readAs="table").load()
        >>> text = "SELECT user, sum(size) AS size FROM now GROUP BY user"
        >>> stream = headrace.follow(
        ...     spark, text, scans={"now": now}, store="shop", table="sums", checkpoint="checkpoints/sums"
        ... )
        >>> try:
        ...     stream.trigger(availableNow=True).start().awaitTermination()
        ... except Exception as error:
        ...     print(headrace.NumericOverflowError.__name__ in str(error))
        True
    """


class StoreError(HeadraceError):
    """The store failed: disk, permissions, server.

    Examples:
        >>> from pathlib import Path
        >>> Path("file").touch()
        >>> try:
        ...     headrace.open("file", create=True)
        ... except headrace.StoreError as error:
        ...     print(error.problem)
        cannot create the store's directory: File exists
    """


class StoreBusyError(StoreError):
    """Another process holds the store for longer than the timeout.

    Examples:
        >>> headrace.StoreBusyError.retryable
        True
    """

    retryable = True


class RowsNotWrittenError(StoreError):
    """The store rejected some rows of a write; the message has their keys. Other rows may have been written.

    Examples:
        >>> try:
        ...     orders.put([{"id": "o3", "price": 1.0}])
        ... except headrace.RowsNotWrittenError as error:
        ...     print("write these again:", error.received)
        2
    """


class StoreDamagedError(StoreError):
    """Files or records of a store are invalid.

    Examples:
        >>> from pathlib import Path
        >>> Path("damaged").mkdir()
        >>> Path("damaged", "db").write_bytes(b"no database")
        11
        >>> try:
        ...     headrace.open("damaged")
        ... except headrace.StoreDamagedError as error:
        ...     print(error.problem)
        the store's database is damaged
    """


class LostRaceError(HeadraceError):
    """Another reader of the batch recorded a different end first. A retry reads up to that end.

    Examples:
        >>> headrace.LostRaceError.retryable
        True
    """

    retryable = True


class PublicationError(HeadraceError):
    """Staged rows cannot be published: they do not exist, do not fit, or the checkpoint is outdated.

    Examples:
        A job with an older checkpoint plans batch 1 again, with other rows:

        >>> publisher = store.publisher("job-1")
        >>> publisher.publish(1, [], content="hash of the rows")
        True
        >>> try:
        ...     publisher.publish(1, [], content="hash of other rows")
        ... except headrace.PublicationError as error:
        ...     print(error.problem)
        batch 1 of job job-1 has other rows than the batch 1 that was published
    """


class ClaimLostError(PublicationError):
    """Another job has taken the target of a publication. Nothing is published.

    Examples:
        >>> from headrace.ports import Claim
        >>> owners = store.create_table("owners", {"target": "string", "job": "string"}, "target")
        >>> first = Claim("owners", before=None, after={"target": "totals", "job": "job-1"})
        >>> store.publisher("job-1").publish(0, [], claim=first)
        True
        >>> second = Claim("owners", before=None, after={"target": "totals", "job": "job-2"})
        >>> try:
        ...     store.publisher("job-2").publish(0, [], claim=second)
        ... except headrace.ClaimLostError as error:
        ...     print("the target belongs to", error.received)
        the target belongs to job-1
    """


class TunnelTakenError(HeadraceError):
    """Another query, or a client, has started to read the tunnel. A tunnel serves either one query or clients.

    Examples:
        >>> try:
        ...     for batch in tunnel.consume(idle="stop"):
        ...         print(len(batch.to_arrow()))
        ... except headrace.TunnelTakenError:
        ...     print("a streaming query reads the tunnel now")
        2
    """


class ClientGoneError(HeadraceError):
    """A client of a tunnel has sent no heartbeat for its timeout, or is closed. Connect again.

    Examples:
        >>> try:
        ...     tunnel.client("c1")
        ... except headrace.ClientGoneError as error:
        ...     print(error.problem)
        the client was closed, or sent no heartbeat within its timeout
    """


class OffsetConflictError(HeadraceError):
    """A consumer's offset is not the expected offset, because another reader has moved it.

    Attributes:
        consumer: the consumer's name.
        queue: the queue's name.
        partition: the partition number.
        expected: the expected offset.
        found: the current offset.

    Examples:
        >>> try:
        ...     store.consumer("reader").advance("clicks", {0: 10}, expected={0: 5})
        ... except headrace.OffsetConflictError as error:
        ...     print(error.expected, error.found)
        5 0
    """

    consumer: str
    queue: str
    partition: int
    expected: int
    found: int

    @classmethod
    def of(cls, consumer: str, queue: str, partition: int, expected: int, found: int) -> OffsetConflictError:
        """Return the error for one partition."""
        error = cls(
            f"consumer {consumer!r} is at row {found} in partition {partition} of queue {queue!r}",
            received=f"expected row {expected}",
            remedy="another reader has moved it: read its offsets again before the next advance, and create a consumer "
            "for each streaming query",
        )
        error.consumer, error.queue = consumer, queue
        error.partition, error.expected, error.found = partition, expected, found
        return error


class SessionEpochError(HeadraceError):
    """A push has another epoch than its session: the session was opened again, or the epoch was never assigned.

    Examples:
        >>> producer = store.create_producer("web")
        >>> former = producer.open_session("clicks", "host-1")
        >>> current = producer.open_session("clicks", "host-1")
        >>> try:
        ...     producer.push(former, [{"user": "u1", "page": "/"}], sequence_number=0)
        ... except headrace.SessionEpochError as error:
        ...     print(error.problem)
        session 'host-1' of producer 'web' on queue 'clicks' was opened by another writer
    """


class SequenceNumberError(HeadraceError, ValueError):
    """Sequence numbers of a push are missing, set in two ways or not increasing; or the number of a save is invalid.

    Examples:
        >>> producer = store.create_producer("web")
        >>> session = producer.open_session("clicks", "host-1")
        >>> try:
        ...     producer.push(session, [{"user": "u1", "page": "/"}])
        ... except headrace.SequenceNumberError as error:
        ...     print(error.problem)
        row 0 has no sequence number
    """
