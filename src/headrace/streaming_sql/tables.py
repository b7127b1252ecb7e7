"""Tables and scans as temporary views of Spark, with the options of their definitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.derived.follow.sources import ScanFrames
from headrace.errors import SqlError
from headrace.formats.registry import format_named
from headrace.model.tables.change_columns import CHANGE_COLUMNS
from headrace.options.option import BATCH_READ, BATCH_WRITE, SOURCE
from headrace.options.secrets import secret_values
from headrace.ports import Table
from headrace.spark.several_tables import of_table, scanned_table
from headrace.spark.sql_errors import translated
from headrace.sql_text.lexer import quote_name, tokenize
from headrace.sql_text.query_text import QueryText
from headrace.sql_text.script import ScriptPart
from headrace.streaming_sql.assignment import assigned
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.definition_checks import check_provider
from headrace.streaming_sql.format_options import check_definition, check_given, options_for_use
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.rewriting import rewrite
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace, is_of_files
from headrace.streaming_sql.results import Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import DataType


class Tables:
    """Creates views for the tables and scans of statements, and reads and writes tables in batch."""

    def __init__(self, spark: SparkSession, catalog: Catalog) -> None:
        self._spark = spark
        self._catalog = catalog
        self._views: dict[str, tuple[str, str | None, dict[str, str]]] = {}
        # For followed scans the stream that has the rows of several tables, if it has.
        self._shared: dict[str, DataFrame | None] = {}

    # -- names in statements ------------------------------------------------------------------------------

    def spark_sql(self, part: ScriptPart, *, of_script: bool = True) -> DataFrame:
        """Run a query in Spark SQL with the dialect's functions and the names of the catalog.

        Args:
            of_script: the user has written the query, so that errors can point into it.

        Raises:
            SqlError, NotFoundError: Spark refuses the query.
        """
        sent = self.rewritten(part)
        with self.own_errors(part, sent if of_script else None):
            return self._spark.sql(sent)

    @contextlib.contextmanager
    def own_errors(self, part: ScriptPart, sent: str | None = None) -> Iterator[None]:
        """Raise Spark's errors in a block in the dialect's words, see `translated`."""
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:
            names = [table.name for table in self._catalog.tables()] + [scan.name for scan in self._catalog.scans()]
            own = translated(error, part, sent, names, self._functions)
            if own is None:
                raise
            raise own from None

    def _functions(self) -> list[str]:
        return [str(name) for (name,) in self._spark.sql("SHOW FUNCTIONS").collect()]

    def rewritten(self, part: ScriptPart) -> str:
        """Return a query as Spark SQL, without the dialect's functions."""
        from headrace.spark.versions import WATERMARKS

        self.create_views_for(part)
        sent = rewrite(part, self._types_of)
        if {"watermark", "delay"} <= {token.name.lower() for token in tokenize(sent).tokens if token.is_name}:
            WATERMARKS.check()
        return sent

    def types_of(self, relation: str) -> dict[str, str]:
        """Return the types of the columns of a table or scan in Spark SQL, by name."""
        self.create_views_for(ScriptPart(f"SELECT * FROM {relation}", 0, len(relation) + 14))
        return self._types_of(relation)

    def _types_of(self, relation: str) -> dict[str, str]:
        from pyspark.errors import AnalysisException

        try:
            return dict(self._spark.sql(f"SELECT * FROM {relation}").dtypes)
        except AnalysisException:
            # The relation exists only inside of the query, such as a common table expression.
            return {}

    def definitions_in(self, part: ScriptPart) -> tuple[list[ScanDefinition], list[TableDefinition]]:
        """Return the scans and the tables of the catalog that a query names."""
        names = QueryText(part.text).references()
        scans = [scan for name in sorted(names) if (scan := self._catalog.find_scan(name)) is not None]
        tables = [
            table
            for name in sorted(names)
            if self._catalog.find_scan(name) is None and (table := self._catalog.find_table(name)) is not None
        ]
        return scans, tables

    def create_views_for(self, part: ScriptPart) -> None:
        """Create a view for each scan and table that a query names."""
        scans, tables = self.definitions_in(part)
        for scan in scans:
            self.register_scan(scan)
        for table in tables:
            options = table.resolved_options()
            self._register(table.name, table, options, streaming=False)

    def check_scan(self, scan: ScanDefinition) -> None:
        """Raise `OptionError` for an invalid option of a scan. Spark's sources check their own options."""
        table = self._catalog.find_table(scan.table)
        if table is not None:
            check_scan_options(scan, table)

    def register_scan(self, scan: ScanDefinition) -> None:
        """Create the view of a scan.

        Raises:
            OptionError: an environment variable or a secret is missing.
        """
        table = self._catalog.find_table(scan.table)
        if table is not None:
            self._register(scan.name, table, table.resolved_options(scan.options), streaming=scan.streaming)
            return
        # One of Spark's own tables.
        reader = self._spark.readStream if scan.streaming else self._spark.read
        reader.options(**scan.options).table(scan.table).createOrReplaceTempView(quote_name(scan.name))
        self._views[scan.name.lower()] = ("", None, dict(scan.options))

    def followed(self, name: str) -> ScanFrames:
        """Return the DataFrames of a followed scan that has a view."""
        rows, shared = self._spark.table(quote_name(name)), self._shared[name.lower()]
        return ScanFrames(rows, rows if shared is None else shared)

    def _register(self, name: str, table: TableDefinition, options: dict[str, str], *, streaming: bool) -> None:
        options = options_for_use(table.provider, options, SOURCE if streaming else BATCH_READ)
        source = (table.provider, table.columns, options)
        if streaming and self._views.get(name.lower()) == source:
            return
        # A view for batch reads is created again each time, because files and columns can have been added.
        reader: DataFrameReader | DataStreamReader = self._spark.readStream if streaming else self._spark.read
        reader = reader.format(table.provider).options(**options)
        if streaming and is_headrace(table.provider) and format_named(table.provider).follows_tables(options):
            # A schema of the user's would lose the key of the table.
            stream = reader.load()
            scanned = scanned_table(stream.schema)
            rows = stream if scanned is None else of_table(stream, scanned)
            _with_columns(rows, table.columns).createOrReplaceTempView(quote_name(name))
            self._views[name.lower()] = source
            self._shared[name.lower()] = None if scanned is None else stream
            return
        if table.columns:
            reader = reader.schema(table.columns)
        elif streaming and is_of_files(table.provider):
            # Spark infers the columns of files for batch reads only.
            reader = reader.schema(self._spark.read.format(table.provider).options(**options).load().schema)
        reader.load().createOrReplaceTempView(quote_name(name))
        self._views[name.lower()] = source

    def unregister(self, name: str) -> None:
        """Remove the view of a scan or table, if there is one."""
        self._shared.pop(name.lower(), None)
        if self._views.pop(name.lower(), None) is not None:
            self._spark.catalog.dropTempView(name)

    # -- statements ---------------------------------------------------------------------------------------

    def belongs_to_spark(self, statement: st.CreateTable) -> bool:
        """Return whether Spark manages the table: it has files, and no path."""
        has_path = any(name.lower() == "path" for name in statement.options)
        return is_of_files(statement.provider) and not has_path

    def define(self, statement: st.CreateTable) -> tuple[TableDefinition, bool]:
        """Store a table's definition; return it, and whether it is new."""
        definition = TableDefinition(
            str(statement.name), statement.provider, dict(statement.options), statement.columns
        )
        if is_headrace(definition.provider):
            check_definition(definition.provider, definition.options, place=f"table {definition.name}")
        check_provider(self._spark, definition.name, definition.provider)
        if self._catalog.find_scan(definition.name) is not None:
            raise SqlError(f"{definition.name} is the name of a scan", remedy=f"DROP SCAN {definition.name} first")
        is_new = self._catalog.add_table(definition, if_not_exists=statement.if_not_exists)
        return self._catalog.table(definition.name), is_new

    def drop(self, name: str) -> bool:
        """Remove a table's definition; return whether it existed."""
        if self._catalog.find_table(name) is None:
            return False
        self.unregister(name)
        return self._catalog.drop_table(name)

    def query(self, insert: st.Insert) -> DataFrame:
        """Return the rows of an INSERT. A column list names the query's columns by position."""
        frame = self.spark_sql(insert.query)
        if insert.columns is None:
            unnamed = [f"col{number}" for number in range(1, len(frame.columns) + 1)]
            table = self._catalog.find_table(str(insert.target))
            if frame.columns == unnamed and table is not None and is_headrace(table.provider):
                raise SqlError(
                    "these values have no names, and columns are matched by name",
                    remedy=f"name the columns: INSERT INTO {table.name} (…) …",
                )
            return frame
        if len(insert.columns) != len(frame.columns):
            raise SqlError(
                "the column list and the query do not have the same number of columns",
                received=frame.columns,
                valid=list(insert.columns),
            )
        return frame.toDF(*insert.columns)

    def write(self, frame: DataFrame, table: TableDefinition, *, overwrite: bool = False) -> None:
        """Write a batch into a table. headrace's formats match columns by name, and cast as Spark's INSERT does."""
        if is_headrace(table.provider):
            frame = assigned(frame, column_types(table), table.name)
        options = options_for_use(table.provider, table.resolved_options(), BATCH_WRITE)
        writer = frame.write.format(table.provider).options(**options)
        writer.mode("overwrite" if overwrite else "append").save()

    def secrets(self) -> frozenset[str]:
        """Return the secrets in the catalog's definitions, which messages must not contain."""
        found: set[str] = set()
        for table in self._catalog.tables():
            found |= secret_values(table.options)
        for scan in self._catalog.scans():
            found |= secret_values(scan.options)
        return frozenset(found)


def check_scan_options(scan: ScanDefinition, table: TableDefinition) -> None:
    """Raise `OptionError` for an invalid option of a scan. Spark's sources check their own options."""
    if is_headrace(table.provider):
        use = SOURCE if scan.streaming else BATCH_READ
        place = f"scan {scan.name}, a {use} with format {table.provider}"
        check_given(table.provider, scan.options, use=use, place=place)


def column_types(table: TableDefinition) -> dict[str, DataType]:
    """Return the types of the columns of a table or queue in its store, which a batch can write."""
    from headrace.spark.versions import spark_type

    location = location_of(table)
    with location.open_store() as store:
        found = location.open(store)
        schema = found.schema if isinstance(found, Table) else found.schema.written
        return {column.name: spark_type(column.type) for column in schema.columns}


def _with_columns(changes: DataFrame, columns: str | None) -> DataFrame:
    """Return changes with the columns of a definition, and the columns of changes."""
    from pyspark.sql.types import StructType

    if columns is None:
        return changes
    declared = StructType.fromDDL(columns)
    assert isinstance(declared, StructType)
    names = [name for name in declared.names if name not in CHANGE_COLUMNS.names]
    return changes.select(*map(quote_name, [*names, *CHANGE_COLUMNS.names]))


def show_scans(catalog: Catalog) -> Result:
    """Run ``SHOW SCANS``. The options are shown without secrets."""
    from headrace.streaming_sql.scripts import options_text

    rows = tuple((scan.name, scan.table, scan.kind, options_text(scan.options)) for scan in catalog.scans())
    return Result(("name", "table", "kind", "options"), rows)
