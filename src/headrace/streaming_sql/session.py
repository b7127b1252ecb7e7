"""`StreamingSql`: runs scripts of the streaming dialect in a Spark session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, SqlError, shown
from headrace.inspect.uses import check_unused
from headrace.options.secrets import is_clear_secret
from headrace.ports.arguments import flag
from headrace.spark.sql_errors import errors_in_a_sentence
from headrace.sql_text.script import Name, ScriptPart, Statement
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.consumers import Consumers
from headrace.streaming_sql.definition_checks import check_provider, missing_note
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.names import Names
from headrace.streaming_sql.new_tables import create_in_store, drop_if_unused, options_of_table
from headrace.streaming_sql.queues import Queues
from headrace.streaming_sql.results import Result
from headrace.streaming_sql.script_checks import check_script, placed
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus
from headrace.streaming_sql.streams import Streams
from headrace.streaming_sql.table_statements import TableStatements
from headrace.streaming_sql.tables import Tables, show_scans
from headrace.streaming_sql.tunnels import Tunnels
from headrace.streaming_sql.views import Views
from headrace.streaming_sql.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StreamingSql:
    """Runs scripts with statements of the streaming dialect and of Spark.

    The workspace keeps tables and streams. Scans last as long as this object.

    Args:
        spark: the session that runs all queries.
        workspace: a directory; its files are in the sub-directory ``.headrace``.

    Examples:
        >>> sql = headrace.sql(spark, "workspace")
        >>> results = sql.run(
        ...     '''CREATE TABLE orders USING headrace OPTIONS (store = "shop", table = "orders");
        ...     SELECT id, price FROM orders ORDER BY id'''
        ... )
        >>> results[1].columns, results[1].fetch()
        (('id', 'price'), [('o1', 10.0), ('o2', 2.5)])
        >>> sql.wait()
        True
    """

    def __init__(self, spark: SparkSession, workspace: str | Path = ".") -> None:
        self._spark = spark
        self._workspace = Workspace(workspace)
        self._catalog = Catalog(self._workspace)
        self._tables = Tables(spark, self._catalog)
        self._registry = registry = StreamRegistry(self._workspace)
        self._streams = Streams(spark, self._catalog, self._tables, registry)
        self._views = Views(spark, self._catalog, self._tables, registry, self._streams)
        self._names = Names(self._catalog, registry)
        self._tunnels = Tunnels(self._catalog, self._streams.uses)
        self._queues = Queues(self._catalog, self._tables)
        self._consumers = Consumers(self._catalog)
        self._table_statements = statements = TableStatements(self._catalog, self._tables)
        self._available_now = False
        self._created: list[TableDefinition] = []
        self._next_query: str | None = None
        self._query_options: dict[str, dict[str, str]] = {}
        self._options_of_all: dict[str, str] = {}
        self._handlers: dict[type[Statement], Callable[[Any], Result]] = {
            st.SparkStatement: self._spark_statement,
            st.CreateTable: self._create_table,
            st.DropTable: self._drop_table,
            st.Insert: self._insert,
            st.CreateScan: self._create_scan,
            st.ShowScans: lambda _: show_scans(self._catalog),
            st.DropScan: self._drop_scan,
            st.CreateStream: lambda statement: self._streams.create(statement, available_now=self._available_now),
            st.StartStream: lambda statement: self._streams.start(statement, available_now=self._available_now),
            st.StopStream: self._streams.stop,
            st.DropStream: self._streams.drop,
            st.ShowStreams: self._streams.show,
            st.DescribeStream: self._streams.describe,
            st.ExplainStream: lambda statement: self._streams.explain(statement, available_now=self._available_now),
            st.CreateView: lambda statement: self._views.create(statement, available_now=self._available_now),
            st.ExplainView: self._views.explain,
            st.ShowViews: self._views.show,
            st.DescribeView: self._views.describe,
            st.DropView: self._views.drop,
            st.CreateTunnel: self._tunnels.create,
            st.ShowTunnels: self._tunnels.show,
            st.DescribeTunnel: self._tunnels.describe,
            st.DropTunnel: self._tunnels.drop,
            st.CreateQueue: self._queues.create,
            st.ShowQueues: self._queues.show,
            st.DescribeQueue: self._queues.describe,
            st.DropQueue: self._drop_queue,
            st.CreateConsumer: self._consumers.create,
            st.ShowConsumers: self._consumers.show,
            st.DescribeConsumer: self._consumers.describe,
            st.DropConsumer: self._consumers.drop,
            st.RegisterConsumer: self._consumers.register,
            st.UnregisterConsumer: self._consumers.unregister,
            st.ShowProducers: self._consumers.show_producers,
            st.Update: self._of_table(statements.update),
            st.Delete: self._of_table(statements.delete),
            st.Truncate: self._of_table(statements.truncate),
            st.ReplaceTable: self._replace_table,
            st.BatchMerge: self._of_table(statements.merge),
            st.AlterTable: self._of_table(statements.alter),
            st.ShowCreateTable: self._of_table(statements.show_create),
            st.SetQueryName: self._set_query_name,
            st.SetQueryOption: self._set_query_option,
        }

    @property
    def spark(self) -> SparkSession:
        """The session that runs all queries."""
        return self._spark

    @property
    def names(self) -> Names:
        """The names of tables, scans, streams and columns."""
        return self._names

    def run(self, text: str, *, available_now: bool = False) -> list[Result]:
        """Run the statements of a script in order; return the result of each.

        The whole script is parsed, and what needs no Spark is checked, before the first statement runs. A statement
        that fails ends the script, and its error has a note with the number and the line of the statement. Tables that
        the script has created, and that are still empty and unused, are removed. Streams that were started before
        continue.

        Args:
            available_now: streams of the script process the existing data and stop.

        Raises:
            SqlError: a statement cannot be parsed, with line, column and a caret.
            HeadraceError: a statement cannot be run. An error of Spark has Spark's sentence.
            pyspark.errors.PySparkException: a function of the user's fails in a statement.
        """
        return list(self.run_each(text, available_now=available_now))

    def run_each(self, text: str, *, available_now: bool = False) -> Iterator[Result]:
        """Run the statements of a script like `run`, and yield the results one by one.

        So the caller can fetch the rows of a query before the next statement changes the table.
        """
        if not isinstance(text, str):
            raise OptionError("a script must be a text", received=shown(text), valid="a str")
        statements = parse(text)
        self._available_now = flag(available_now, "available_now")
        check_script(statements, self._catalog, self._registry)
        return self._run_each(statements)

    def diff(self, text: str) -> list[tuple[str, str, str]]:
        """Return what the streams and materialized views of a script would change if it replaced their queries.

        Nothing is written. The scans of the script are created in this session; its other statements do not run.

        Returns:
            The names of the streams, with the properties of their change.

        Raises:
            HeadraceError: a new text cannot replace that of its stream.
        """
        statements = parse(text)
        found: list[tuple[str, str, str]] = []
        for number, statement in enumerate(statements, start=1):
            with placed(statement, number, len(statements)), errors_in_a_sentence():
                if isinstance(statement, st.CreateScan):
                    self._create_scan(replace(statement, replace=True))
                elif isinstance(statement, st.CreateStream):
                    found += [(str(statement.name), *each) for each in self._streams.change(statement)]
                elif isinstance(statement, st.CreateView):
                    found += [(str(statement.name), *each) for each in self._views.change(statement)]
        return found

    def _run_each(self, statements: Sequence[Statement]) -> Iterator[Result]:
        self._created = []
        for number, statement in enumerate(statements, start=1):
            try:
                with placed(statement, number, len(statements)), errors_in_a_sentence():
                    result = self._handlers[type(statement)](statement)
            except Exception:
                self._remove_unused()
                raise
            yield result

    def _remove_unused(self) -> None:
        """Remove the tables that a failed script has created and nothing uses, so that the corrected one can run."""
        for definition in self._created:
            with contextlib.suppress(HeadraceError):
                used = self._streams.uses.of_definition(definition.name, only_running=True)
                if not used and drop_if_unused(definition):
                    self._tables.drop(definition.name)

    def streams(self) -> list[StreamStatus]:
        """Return all streams of the workspace, including those of other processes."""
        return self._streams.statuses()

    def wait(self, timeout: float | None = None, *, fail_fast: bool = False) -> bool:
        """Wait until all streams of this object have ended; return False after ``timeout`` seconds.

        A stream that fails is logged, and the others go on.

        Args:
            fail_fast: raise the error of a stream as soon as it has failed.

        Raises:
            StreamingQueryException: the error of the first stream that failed, with a note that names the stream.
        """
        return self._streams.wait(timeout, fail_fast=flag(fail_fast, "fail_fast"))

    def stop(self) -> None:
        """Stop all streams of this object."""
        self._streams.stop_all()
        self._workspace.close()

    # -- tables and scans -----------------------------------------------------------------------------------

    def _spark_statement(self, statement: Statement) -> Result:
        frame = self._tables.spark_sql(statement.part)
        if frame.isStreaming:
            scans, _ = self._tables.definitions_in(statement.part)
            streaming = [scan for scan in scans if scan.streaming]
            names = ", ".join(scan.name for scan in streaming)
            tables = ", ".join(dict.fromkeys(scan.table for scan in streaming))
            raise SqlError(
                "this query reads a stream, and would never end",
                received=f"scan {names}" if names else None,
                remedy=f"name the table to see its current rows: SELECT … FROM {tables or '…'}; or run the query as a "
                "stream: CREATE STREAM name INSERT INTO table SELECT …",
            )
        if statement.part.text[:3].upper() == "SET" and frame.columns[:2] == ["key", "value"]:
            rows = [
                (key, "***" if is_clear_secret(key, value) else value, *others)
                for key, value, *others in frame.collect()
            ]
            return Result(tuple(frame.columns), tuple(rows))
        return Result(tuple(frame.columns), dataframe=frame)

    def _of_table(self, run: Callable[[Any, TableDefinition], Result]) -> Callable[[Any], Result]:
        """Return the handler of a statement about a table, which Spark runs for its own tables."""

        def handle(statement: st.TableStatement) -> Result:
            definition = self._table_statements.own(statement)
            return self._spark_statement(statement) if definition is None else run(statement, definition)

        return handle

    def _replace_table(self, statement: st.ReplaceTable) -> Result:
        """Let Spark replace one of its own tables; those of headrace are refused."""
        self._table_statements.own(statement)
        return self._spark_statement(statement)

    def _create_table(self, statement: st.CreateTable) -> Result:
        if self._tables.belongs_to_spark(statement):
            check_provider(self._spark, str(statement.name), statement.provider)
            return self._spark_statement(statement)
        settings: dict[str, Any] = {}
        if statement.primary_key:
            statement, settings = options_of_table(statement)
        definition, is_new = self._tables.define(statement)
        try:
            # A script that runs again has the same definitions.
            may_exist = statement.if_not_exists or not is_new
            created = statement.primary_key and create_in_store(statement, definition, settings, may_exist=may_exist)
            if created and is_new:
                self._created.append(definition)
            if statement.query is None:
                done = "defined" if is_new else "is already defined"
                done = "created" if created else f"{done}{missing_note(definition)}"
                return Result(message=f"table {definition.name} {done}")
            return self._fill(statement, statement.query, is_new)
        except Exception:
            if is_new:
                self._tables.drop(definition.name)
            raise

    def _fill(self, statement: st.CreateTable, query: ScriptPart, is_new: bool) -> Result:
        """Run the query of a ``CREATE TABLE … AS``. A streaming query continues when the statement runs again."""
        insert = st.Insert(part=statement.part, target=statement.name, overwrite=False, columns=None, query=query)
        name = str(statement.name)
        frame = self._tables.query(insert)
        if frame.isStreaming:
            return self._start_named_stream(insert)
        if is_new:
            self._tables.write(frame, self._catalog.table(name))
            return Result(message=f"table {name} defined and written")
        if statement.if_not_exists:
            return Result(message=f"table {name} is already defined; nothing was written")
        raise AlreadyExistsError(
            "the table exists, and would be filled again",
            received=name,
            remedy="use CREATE TABLE IF NOT EXISTS, INSERT INTO, or DROP TABLE first",
        )

    def _drop_table(self, statement: st.DropTable) -> Result:
        """Forget a table's definition.

        Scans and stopped streams are no obstacle, as the definition is all that they lose: scripts that begin with
        ``DROP TABLE IF EXISTS`` and ``CREATE TABLE`` run again.
        """
        name = str(statement.name)
        uses = self._streams.uses
        users = uses.of_definition(name)
        if not statement.cascade:
            check_unused(f"table {name}", lambda: uses.of_definition(name, only_running=True), by="CASCADE")
        if self._tables.drop(name):
            message = f"table {name} forgotten; its rows stay in their store"
            return Result(message=message + users_note(users))
        # Spark's own tables have no users here, and its statement has no CASCADE.
        return self._spark_statement(replace(statement, part=replace(statement.part, end=statement.name.part.end)))

    def _drop_queue(self, statement: st.DropQueue) -> Result:
        users = self._streams.uses.of_definition(str(statement.name))
        result = self._queues.drop(statement, users)
        return replace(result, message=f"{result.message}{users_note(users)}")

    def _insert(self, statement: st.Insert) -> Result:
        name = str(statement.target)
        if self._catalog.find_scan(name) is not None:
            raise SqlError(f"{name} is a scan, which can only be read", remedy="insert into its table")
        table = self._catalog.find_table(name)
        if table is None and self._next_query is None:
            return self._spark_statement(statement)
        frame = self._tables.query(statement)
        if frame.isStreaming:
            if statement.overwrite:
                raise SqlError(
                    "INSERT OVERWRITE cannot write a stream",
                    remedy="use INSERT INTO; with outputMode 'complete' each batch replaces the content of the table",
                )
            return self._start_named_stream(statement)
        if table is None:
            return self._spark_statement(statement)
        self._tables.write(frame, table, overwrite=statement.overwrite)
        return Result(message=f"written to {table.name}")

    def _create_scan(self, statement: st.CreateScan) -> Result:
        scan = ScanDefinition.from_statement(statement)
        if self._catalog.find_table(scan.name) is not None:
            raise AlreadyExistsError("a table has this name", received=scan.name)
        self._tables.check_scan(scan)
        before = self._catalog.find_scan(scan.name)
        self._catalog.add_scan(scan, replace=statement.replace)
        try:
            self._tables.register_scan(scan)
        except Exception:
            self._catalog.drop_scan(scan.name)
            if before is not None:
                self._catalog.add_scan(before)
            raise
        return Result(message=f"scan {scan.name} reads {scan.table} as a {scan.kind.lower()}")

    def _drop_scan(self, statement: st.DropScan) -> Result:
        name = str(statement.name)
        if self._catalog.drop_scan(name):
            self._tables.unregister(name)
            return Result(message=f"scan {name} dropped")
        if statement.if_exists:
            return Result(message=f"scan {name} does not exist")
        known = [scan.name for scan in self._catalog.scans()]
        raise NotFoundError("no such scan in this session", received=name, valid=known)

    # -- the older dialect ----------------------------------------------------------------------------------

    def _set_query_name(self, statement: st.SetQueryName) -> Result:
        self._next_query = statement.name
        return Result(message=f"the next streaming query is {statement.name}")

    def _set_query_option(self, statement: st.SetQueryOption) -> Result:
        if statement.query is None:
            self._options_of_all[statement.option] = statement.value
        else:
            self._query_options.setdefault(statement.query.lower(), {})[statement.option] = statement.value
        return Result(message=f"option {statement.option} is set")

    def _start_named_stream(self, insert: st.Insert) -> Result:
        """Start a streaming query with the name and the options of earlier SET statements."""
        if self._next_query is None:
            raise OptionError(
                "this query reads a stream, so it needs a name and options",
                remedy="use CREATE STREAM name OPTIONS (checkpointLocation='…') INSERT INTO …, "
                "or SET streaming.query.name=… before it",
            )
        name, self._next_query = self._next_query, None
        options = {**self._options_of_all, **self._query_options.get(name.lower(), {})}
        stream = st.CreateStream(part=insert.part, name=Name((name,), insert.part), options=options, body=insert)
        return self._streams.create(stream, available_now=self._available_now)


def users_note(users: Sequence[str]) -> str:
    """Return the end of a message about a dropped table or queue: the scans and streams that use it."""
    return f"; it is still needed by {', '.join(users)}" if users else ""


def sql(spark: SparkSession, workspace: str | Path = ".") -> StreamingSql:
    """Return a `StreamingSql` for a session: ``headrace.sql(spark).run(open("job.sql").read())``.

    Examples:
        >>> sql = headrace.sql(spark, "workspace")
        >>> sql.run("SELECT 1 AS one")[0].fetch()
        [(1,)]
    """
    return StreamingSql(spark, workspace)
