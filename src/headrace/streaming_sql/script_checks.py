"""Checks of a whole script that need no Spark, before its first statement runs.

Spark takes seconds to start, and a script that fails in its middle leaves the tables of its first half. These checks
find errors in options, keys, formats and names of all statements at once. They open no store. Statements that Spark
runs are not checked, and a name that Spark may know is no error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.errors import AlreadyExistsError, SqlError
from headrace.model.tables.schema import TableSchema
from headrace.options.secrets import resolved
from headrace.sql_text.lexer import fingerprint, hide_secrets
from headrace.sql_text.script import Statement
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition, check_same
from headrace.streaming_sql.definition_checks import check_near_miss
from headrace.streaming_sql.format_options import check_definition, check_sink_options
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.new_tables import options_of_table
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.scripts import stream_text
from headrace.streaming_sql.stream_options import no_checkpoint, no_target, read_stream_options
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.tables import check_scan_options


@contextlib.contextmanager
def placed(statement: Statement, number: int, total: int) -> Iterator[None]:
    """Add the number and the line of a statement to the errors of a block."""
    try:
        yield
    except Exception as error:
        first_line = hide_secrets(statement.part.text).split("\n", 1)[0][:80]
        error.add_note(f"in statement {number} of {total}, line {statement.part.line}: {first_line}")
        raise


def check_script(statements: Sequence[Statement], catalog: Catalog, registry: StreamRegistry) -> None:
    """Check statements in their order, with the definitions that the earlier ones make.

    Raises:
        HeadraceError: a statement is wrong, with a note of its number and line.
    """
    script = _Script(catalog, registry)
    for number, statement in enumerate(statements, start=1):
        with placed(statement, number, len(statements)):
            script.check(statement)


class _Script:
    """The definitions of a workspace as the statements of a script would change them."""

    def __init__(self, catalog: Catalog, registry: StreamRegistry) -> None:
        self._catalog = catalog
        self._registry = registry
        # None: the script has removed the name.
        self._tables: dict[str, TableDefinition | None] = {}
        self._scans: dict[str, ScanDefinition | None] = {}
        self._streams: set[str] = set()
        # Whether Spark has run a statement, which can have created tables of any name.
        self._spark_has_run = False
        self._checks: dict[type[Statement], Callable[[Any], None]] = {
            st.CreateTable: self._create_table,
            st.DropTable: lambda statement: self._tables.update({str(statement.name).lower(): None}),
            st.DropQueue: lambda statement: self._tables.update({str(statement.name).lower(): None}),
            st.CreateScan: self._create_scan,
            st.DropScan: lambda statement: self._scans.update({str(statement.name).lower(): None}),
            st.CreateStream: self._create_stream,
            st.StartStream: self._known_stream,
            st.StopStream: self._change_stream,
            st.DropStream: self._change_stream,
            st.SparkStatement: self._spark_statement,
        }

    def check(self, statement: Statement) -> None:
        self._checks.get(type(statement), lambda _: None)(statement)

    def _table(self, name: str) -> TableDefinition | None:
        key = name.lower()
        return self._tables[key] if key in self._tables else self._catalog.find_table(name)

    def _scan(self, name: str) -> ScanDefinition | None:
        key = name.lower()
        return self._scans[key] if key in self._scans else self._catalog.find_scan(name)

    def _create_table(self, statement: st.CreateTable) -> None:
        name = str(statement.name)
        if not is_headrace(statement.provider):
            check_near_miss(name, statement.provider)
        elif statement.primary_key:
            assert statement.new_columns is not None
            statement, _ = options_of_table(statement)
            TableSchema.of(statement.new_columns, statement.primary_key)
        definition = TableDefinition(name, statement.provider, dict(statement.options), statement.columns)
        if is_headrace(statement.provider):
            check_definition(definition.provider, definition.options, place=f"table {name}")
            if self._scan(name) is not None:
                raise SqlError(f"{name} is the name of a scan", remedy=f"DROP SCAN {name} first")
        known = self._table(name)
        if known is not None and not statement.if_not_exists:
            check_same(known, definition)
        if known is None:
            self._tables[name.lower()] = definition

    def _create_scan(self, statement: st.CreateScan) -> None:
        scan = ScanDefinition.from_statement(statement)
        if self._table(scan.name) is not None:
            raise AlreadyExistsError("a table has this name", received=scan.name)
        table = self._table(scan.table)
        if table is not None:
            check_scan_options(scan, table)
        self._scans[scan.name.lower()] = scan

    def _create_stream(self, statement: st.CreateStream) -> None:
        name, target_name = str(statement.name), str(statement.body.target)
        options = read_stream_options(name, resolved(statement.options, f"stream {name}"))
        if self._scan(target_name) is not None:
            raise SqlError(f"{target_name} is a scan, which can only be read", remedy="name its table as the target")
        target = self._table(target_name)
        if target is None and not self._spark_has_run and options.checkpoint is None:
            raise no_target(target_name, [each.name for each in self._catalog.tables()])
        if target is not None and not is_headrace(target.provider) and options.checkpoint is None:
            raise no_checkpoint(name)
        if isinstance(statement.body, st.Insert):
            check_sink_options(name, target, statement.options, options)
        known = self._registry.find(name)
        if known is not None and name.lower() not in self._streams and not statement.replace:
            known.check_ended()
            known.check_text(fingerprint(stream_text(name, statement.options, statement.body.text)))
        self._streams.add(name.lower())

    def _known_stream(self, statement: st.StartStream) -> None:
        if str(statement.name).lower() not in self._streams:
            self._registry.get(str(statement.name))
        self._streams.add(str(statement.name).lower())

    def _change_stream(self, statement: st.StopStream | st.DropStream) -> None:
        name = str(statement.name)
        optional = isinstance(statement, st.DropStream) and statement.if_exists
        if name.lower() not in self._streams and not optional:
            self._registry.get(name)
        self._streams.add(name.lower())

    def _spark_statement(self, statement: st.SparkStatement) -> None:
        self._spark_has_run = True
