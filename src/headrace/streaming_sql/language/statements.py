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
class CreateTable(Statement):
    """``CREATE TABLE``. A ``LOCATION`` is option ``path``, and ``columns`` is the text in parentheses.

    With a ``PRIMARY KEY``, the table is created in its store: ``new_columns`` are the types by name, ``partition_by``
    the columns of ``PARTITIONED BY``, and ``columns`` is None, because the store keeps them.
    """

    name: Name
    if_not_exists: bool
    columns: str | None
    provider: str
    options: Mapping[str, str] = field(repr=False)
    query: ScriptPart | None
    new_columns: Mapping[str, str] | None = None
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DropTable(Statement):
    name: Name
    if_exists: bool
    cascade: bool


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


@dataclass(frozen=True, kw_only=True)
class Truncate(TableStatement):
    pass


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


@dataclass(frozen=True, kw_only=True)
class ShowCreateTable(TableStatement):
    pass


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
class CreateScan(Statement):
    name: Name
    table: Name
    streaming: bool
    replace: bool
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ShowScans(Statement):
    pass


@dataclass(frozen=True, kw_only=True)
class DropScan(Statement):
    name: Name
    if_exists: bool


@dataclass(frozen=True, kw_only=True)
class CreateStream(Statement):
    """``CREATE STREAM``; with ``replace``, the stream may have had another text."""

    name: Name
    replace: bool = False
    options: Mapping[str, str] = field(repr=False)
    body: StreamBody


@dataclass(frozen=True, kw_only=True)
class ShowStreams(Statement):
    pass


@dataclass(frozen=True, kw_only=True)
class DescribeStream(Statement):
    name: Name


@dataclass(frozen=True, kw_only=True)
class StopStream(Statement):
    name: Name


@dataclass(frozen=True, kw_only=True)
class StartStream(Statement):
    name: Name


@dataclass(frozen=True, kw_only=True)
class DropStream(Statement):
    name: Name
    if_exists: bool


@dataclass(frozen=True, kw_only=True)
class ExplainStream(Statement):
    """``EXPLAIN STREAM name`` or ``EXPLAIN CREATE STREAM …``."""

    target: Name | CreateStream


@dataclass(frozen=True, kw_only=True)
class CreateView(Statement):
    """``CREATE MATERIALIZED VIEW``."""

    name: Name
    if_not_exists: bool
    replace: bool
    options: Mapping[str, str] = field(repr=False)
    query: ScriptPart


@dataclass(frozen=True, kw_only=True)
class ShowViews(Statement):
    pass


@dataclass(frozen=True, kw_only=True)
class DescribeView(Statement):
    name: Name


@dataclass(frozen=True, kw_only=True)
class DropView(Statement):
    name: Name
    if_exists: bool


@dataclass(frozen=True, kw_only=True)
class CreateTunnel(Statement):
    """``CREATE TUNNEL``. ``kind`` is None if the statement has none."""

    name: Name
    if_not_exists: bool
    tables: tuple[Name, ...]
    kind: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ShowTunnels(Statement):
    table: Name | None


@dataclass(frozen=True, kw_only=True)
class DescribeTunnel(Statement):
    name: Name
    table: Name | None


@dataclass(frozen=True, kw_only=True)
class DropTunnel(Statement):
    name: Name
    if_exists: bool
    table: Name | None
    cascade: bool


@dataclass(frozen=True, kw_only=True)
class CreateQueue(Statement):
    """``CREATE QUEUE``. ``columns`` are types by name, as in `headrace.ports.Store.create_queue`."""

    name: Name
    if_not_exists: bool
    columns: Mapping[str, str]
    provider: str
    partitions: int | None
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ShowQueues(Statement):
    pass


@dataclass(frozen=True, kw_only=True)
class DescribeQueue(Statement):
    name: Name


@dataclass(frozen=True, kw_only=True)
class DropQueue(Statement):
    name: Name
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, kw_only=True)
class CreateConsumer(Statement):
    name: Name
    if_not_exists: bool
    options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ShowConsumers(Statement):
    queue: Name | None


@dataclass(frozen=True, kw_only=True)
class DescribeConsumer(Statement):
    name: Name
    queue: Name | None


@dataclass(frozen=True, kw_only=True)
class DropConsumer(Statement):
    name: Name
    if_exists: bool
    cascade: bool


@dataclass(frozen=True, kw_only=True)
class RegisterConsumer(Statement):
    name: Name
    queue: Name
    vital: bool


@dataclass(frozen=True, kw_only=True)
class UnregisterConsumer(Statement):
    name: Name
    queue: Name


@dataclass(frozen=True, kw_only=True)
class ShowProducers(Statement):
    pass


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
