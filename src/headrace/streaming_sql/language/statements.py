"""The statements of the dialect, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import SqlError
from headrace.sql_text.lexer import quote_name
from headrace.sql_text.script import Name, ScriptPart, Statement, StreamBody


@dataclass(frozen=True, kw_only=True)
class SparkStatement(Statement):
    """A statement for Spark."""


@dataclass(frozen=True, kw_only=True)
class NamedStatement(Statement):
    """A statement about what has a name, or gets it."""

    name: Name


@dataclass(frozen=True, kw_only=True)
class DropStatement(NamedStatement):
    """``DROP …``, with ``if_exists`` no error if there is nothing of this name."""

    if_exists: bool


@dataclass(frozen=True, kw_only=True)
class CascadingDrop(DropStatement):
    """``DROP …``, with ``cascade`` also of what is in use."""

    cascade: bool


@dataclass(frozen=True, kw_only=True)
class CreateTable(NamedStatement):
    """``CREATE TABLE``. A ``LOCATION`` is option ``path``, and ``columns`` is the text in parentheses.

    With a ``PRIMARY KEY``, the table is created in its store: ``new_columns`` are the types by name, ``partition_by``
    the columns of ``PARTITIONED BY``, and ``columns`` is None, because the store keeps them.
    """

    if_not_exists: bool
    columns: str | None
    provider: str
    options: Mapping[str, str] = field(repr=False)
    query: ScriptPart | None
    new_columns: Mapping[str, str] | None = None
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()


class DropTable(CascadingDrop):
    """``DROP TABLE``."""


@dataclass(frozen=True, kw_only=True)
class TableStatement(Statement):
    """A statement about one table, which is Spark's if the table is."""

    target: Name


@dataclass(frozen=True, kw_only=True)
class Update(TableStatement):
    """``UPDATE … SET``: the new values of columns, as expressions over the old row."""

    alias: str | None
    values: tuple[tuple[Name, ScriptPart], ...]
    where: ScriptPart | None


@dataclass(frozen=True, kw_only=True)
class Delete(TableStatement):
    alias: str | None
    where: ScriptPart | None


class Truncate(TableStatement):
    """``TRUNCATE TABLE``."""


@dataclass(frozen=True, kw_only=True)
class ReplaceTable(TableStatement):
    """``REPLACE TABLE`` or ``CREATE OR REPLACE TABLE``. ``provider`` is empty if the statement has none."""

    provider: str


@dataclass(frozen=True, kw_only=True)
class BatchMerge(TableStatement):
    """``MERGE INTO`` outside of a stream."""


@dataclass(frozen=True, kw_only=True)
class AlterTable(TableStatement):
    """``ALTER TABLE``. ``columns`` are those of ``ADD COLUMNS``, as types by name; None for other forms.

    ``problem`` is the error of columns that cannot be parsed, if the table is not Spark's.
    """

    columns: Mapping[str, str] | None
    if_not_exists: bool
    problem: SqlError | None


class ShowCreateTable(TableStatement):
    """``SHOW CREATE TABLE``."""


@dataclass(frozen=True, kw_only=True)
class Insert(StreamBody):
    """``INSERT INTO`` or ``INSERT OVERWRITE`` with a query."""

    overwrite: bool
    columns: tuple[str, ...] | None
    query: ScriptPart

    @property
    def reads(self) -> ScriptPart:
        return self.query

    @property
    def text(self) -> str:
        columns = "" if self.columns is None else f" ({', '.join(map(quote_name, self.columns))})"
        return f"INSERT INTO {self.target.part.text}{columns} {self.query.text}"


@dataclass(frozen=True, kw_only=True)
class CreateScan(NamedStatement):
    table: Name
    streaming: bool
    replace: bool
    options: Mapping[str, str] = field(repr=False)


class ShowScans(Statement):
    """``SHOW SCANS``."""


class DropScan(DropStatement):
    """``DROP SCAN``."""


@dataclass(frozen=True, kw_only=True)
class CreateStream(NamedStatement):
    """``CREATE STREAM``; with ``replace``, the stream may have had another text."""

    replace: bool = False
    options: Mapping[str, str] = field(repr=False)
    body: StreamBody


class ShowStreams(Statement):
    """``SHOW STREAMS``."""


class DescribeStream(NamedStatement):
    """``DESCRIBE STREAM``."""


class StopStream(NamedStatement):
    """``STOP STREAM``."""


class StartStream(NamedStatement):
    """``START STREAM``."""


class DropStream(DropStatement):
    """``DROP STREAM``."""


@dataclass(frozen=True, kw_only=True)
class ExplainStream(Statement):
    """``EXPLAIN STREAM name`` or ``EXPLAIN CREATE STREAM …``."""

    target: Name | CreateStream


@dataclass(frozen=True, kw_only=True)
class CreateView(NamedStatement):
    """``CREATE MATERIALIZED VIEW``."""

    if_not_exists: bool
    replace: bool
    options: Mapping[str, str] = field(repr=False)
    query: ScriptPart


@dataclass(frozen=True, kw_only=True)
class ExplainView(Statement):
    """``EXPLAIN CREATE MATERIALIZED VIEW …``."""

    view: CreateView


class ShowViews(Statement):
    """``SHOW MATERIALIZED VIEWS``."""


class DescribeView(NamedStatement):
    """``DESCRIBE MATERIALIZED VIEW``."""


class DropView(DropStatement):
    """``DROP MATERIALIZED VIEW``."""


@dataclass(frozen=True, kw_only=True)
class CreateTunnel(NamedStatement):
    """``CREATE TUNNEL``. ``kind`` is None if the statement has none."""

    if_not_exists: bool
    tables: tuple[Name, ...]
    kind: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ShowTunnels(Statement):
    table: Name | None


@dataclass(frozen=True, kw_only=True)
class DescribeTunnel(NamedStatement):
    table: Name | None


@dataclass(frozen=True, kw_only=True)
class DropTunnel(CascadingDrop):
    table: Name | None


@dataclass(frozen=True, kw_only=True)
class CreateQueue(NamedStatement):
    """``CREATE QUEUE``. ``columns`` are types by name, as in `headrace.ports.Store.create_queue`."""

    if_not_exists: bool
    columns: Mapping[str, str]
    provider: str
    partitions: int | None
    options: Mapping[str, str] = field(repr=False)


class ShowQueues(Statement):
    """``SHOW QUEUES``."""


class DescribeQueue(NamedStatement):
    """``DESCRIBE QUEUE``."""


class DropQueue(CascadingDrop):
    """``DROP QUEUE``."""


@dataclass(frozen=True, kw_only=True)
class CreateConsumer(NamedStatement):
    if_not_exists: bool
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ShowConsumers(Statement):
    queue: Name | None


@dataclass(frozen=True, kw_only=True)
class DescribeConsumer(NamedStatement):
    queue: Name | None


class DropConsumer(CascadingDrop):
    """``DROP CONSUMER``."""


@dataclass(frozen=True, kw_only=True)
class RegisterConsumer(NamedStatement):
    queue: Name
    vital: bool


@dataclass(frozen=True, kw_only=True)
class UnregisterConsumer(NamedStatement):
    queue: Name


class ShowProducers(Statement):
    """``SHOW PRODUCERS``."""


@dataclass(frozen=True, kw_only=True)
class SetQueryName(Statement):
    """``SET streaming.query.name=q``: the name of the next streaming query."""

    name: str


@dataclass(frozen=True, kw_only=True)
class SetQueryOption(Statement):
    """``SET`` of an option of query ``query``; None for all later queries."""

    query: str | None
    option: str
    value: str = field(repr=False)
