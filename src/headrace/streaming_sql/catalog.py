"""The definitions of tables and scans, from ``CREATE TABLE`` and ``CREATE SCAN``.

Spark's own catalog cannot hold them: it stores the options of a table, but does not pass them to a Python data source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, StoreDamagedError
from headrace.formats.registry import format_named
from headrace.options.secrets import masked, resolved
from headrace.streaming_sql.language.statements import CreateScan
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.workspace import Workspace


def overlaid(options: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` overridden by ``over``. Names are case-insensitive."""
    covered = {name.lower() for name in over}
    return {**{name: value for name, value in options.items() if name.lower() not in covered}, **over}


@dataclass(frozen=True)
class TableDefinition:
    """The content of a ``CREATE TABLE``. ``columns`` is a schema in Spark SQL; None if the statement has none."""

    name: str
    provider: str
    options: Mapping[str, str] = field(repr=False)
    columns: str | None = None

    def without_secrets(self) -> TableDefinition:
        return replace(self, options=masked(self.options))

    def resolved_options(self, over: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the options overridden by ``over``, with the values of environment variables and secrets.

        Raises:
            OptionError: a variable is not set, or a secret was not stored.
        """
        options = resolved(overlaid(self.options, over or {}), f"table {self.name}")
        if not is_headrace(self.provider):
            return options
        # Spark's processes have the environment of Spark's start, not the current one.
        return format_named(self.provider).with_environment(options)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableDefinition:
        """Read the text of `to_json`.

        Raises:
            StoreDamagedError: the text is not a definition.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreDamagedError("a table's definition in the workspace is not JSON", received=str(error)) from None
        if not _is_definition(content):
            raise StoreDamagedError(
                "a table's definition in the workspace is not complete",
                valid="name, provider, options and columns",
                remedy="create the table again",
            )
        return cls(**content)


def _is_definition(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and content.keys() == {"name", "provider", "options", "columns"}
        and isinstance(content["name"], str)
        and isinstance(content["provider"], str)
        and isinstance(content["columns"], str | None)
        and isinstance(content["options"], dict)
        and all(isinstance(value, str) for value in content["options"].values())
    )


@dataclass(frozen=True)
class ScanDefinition:
    """The content of a ``CREATE SCAN``."""

    name: str
    table: str
    streaming: bool
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def from_statement(cls, statement: CreateScan) -> ScanDefinition:
        return cls(str(statement.name), str(statement.table), statement.streaming, dict(statement.options))

    @property
    def kind(self) -> str:
        return "STREAM" if self.streaming else "BATCH"


def check_same(known: TableDefinition, given: TableDefinition) -> None:
    """Raise `AlreadyExistsError` if the name of a definition has another one."""
    if known.without_secrets() != replace(given.without_secrets(), name=known.name):
        raise AlreadyExistsError(
            "a table of this name has another definition",
            received=given.name,
            remedy=f"DROP TABLE {given.name} first (this forgets the definition, not the rows)",
        )


class Catalog:
    """The tables of a workspace, which are stored, and the scans of one session, which are in memory.

    Names are case-insensitive. Secrets in clear text are in memory only.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._with_secrets: dict[str, TableDefinition] = {}
        self._scans: dict[str, ScanDefinition] = {}

    # -- tables -----------------------------------------------------------------------------------------

    def tables(self) -> list[TableDefinition]:
        """Return all tables, by name."""
        rows = self._workspace.query("SELECT definition FROM definition ORDER BY name")
        return [self._completed(TableDefinition.from_json(text)) for (text,) in rows]

    def find_table(self, name: str) -> TableDefinition | None:
        """Return a table's definition; None if the catalog has none (the name can be a table of Spark)."""
        rows = self._workspace.query("SELECT definition FROM definition WHERE name = ?", (name.lower(),))
        return self._completed(TableDefinition.from_json(rows[0][0])) if rows else None

    def table(self, name: str) -> TableDefinition:
        """Return a table's definition, or raise `NotFoundError`."""
        found = self.find_table(name)
        if found is None:
            raise NotFoundError(
                "no such table in this workspace",
                received=name,
                valid=[table.name for table in self.tables()],
                remedy="CREATE TABLE … USING defines one",
            )
        return found

    def _completed(self, stored: TableDefinition) -> TableDefinition:
        known = self._with_secrets.get(stored.name.lower())
        return known if known is not None and known.without_secrets() == stored else stored

    def add_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> bool:
        """Store a definition. The same definition again is no error, so that a script can run again.

        Returns:
            Whether the definition is new.

        Raises:
            AlreadyExistsError: the name has another definition.
        """
        stored = definition.without_secrets()
        with self._workspace.write() as connection:
            rows = list(
                connection.execute("SELECT definition FROM definition WHERE name = ?", (definition.name.lower(),))
            )
            known = TableDefinition.from_json(rows[0][0]) if rows else None
            if known is not None and not if_not_exists:
                check_same(known, definition)
            if known is None:
                connection.execute("INSERT INTO definition VALUES (?, ?)", (definition.name.lower(), stored.to_json()))
        kept = known or stored
        self._with_secrets[definition.name.lower()] = replace(definition, name=kept.name)
        return known is None

    def drop_table(self, name: str) -> bool:
        """Remove a definition; return whether it existed."""
        self._with_secrets.pop(name.lower(), None)
        with self._workspace.write() as connection:
            connection.execute("DELETE FROM definition WHERE name = ?", (name.lower(),))
            return connection.changes() > 0

    # -- scans ------------------------------------------------------------------------------------------

    def scans(self) -> list[ScanDefinition]:
        return sorted(self._scans.values(), key=lambda scan: scan.name.lower())

    def find_scan(self, name: str) -> ScanDefinition | None:
        return self._scans.get(name.lower())

    def add_scan(self, scan: ScanDefinition, *, replace: bool = False) -> bool:
        """Keep a scan for this session; return whether it is new. The same scan again is no error.

        Raises:
            AlreadyExistsError: the name has another definition.
        """
        known = self._scans.get(scan.name.lower())
        if known is not None and known != scan and not replace:
            raise AlreadyExistsError(
                "a scan of this name has another definition",
                received=scan.name,
                remedy="use CREATE OR REPLACE SCAN, or DROP SCAN first",
            )
        self._scans[scan.name.lower()] = scan
        return known is None

    def drop_scan(self, name: str) -> bool:
        return self._scans.pop(name.lower(), None) is not None
