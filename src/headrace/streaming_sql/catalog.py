"""The tables and scans that a workspace knows: what ``CREATE TABLE`` and ``CREATE SCAN`` said.

Spark keeps the options of a table but does not hand them to a Python data source when the table is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, StoreDamagedError
from headrace.formats.registry import format_named
from headrace.streaming_sql.language.statements import CreateScan
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.secrets import masked, resolved
from headrace.streaming_sql.workspace import Workspace


def overlaid(options: Mapping[str, str], over: Mapping[str, str]) -> dict[str, str]:
    """Return options with others laid over them; names are compared without regard to case."""
    covered = {name.lower() for name in over}
    return {**{name: value for name, value in options.items() if name.lower() not in covered}, **over}


@dataclass(frozen=True)
class TableDefinition:
    """What ``CREATE TABLE`` said. ``columns`` is the schema as Spark SQL writes it, None if there was none."""

    name: str
    provider: str
    options: Mapping[str, str] = field(repr=False)
    columns: str | None = None

    def without_secrets(self) -> TableDefinition:
        return replace(self, options=masked(self.options))

    def resolved_options(self, over: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the options as they are used, others laid over them, with environment variables and secrets.

        Raises:
            OptionError: a variable is not set, or a secret was not kept.
        """
        options = resolved(overlaid(self.options, over or {}), f"table {self.name}")
        if not is_headrace(self.provider):
            return options
        # The processes in which Spark asks a data source have the environment that Spark was started with.
        return format_named(self.provider).with_environment(options)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TableDefinition:
        """Read what `to_json` wrote.

        Raises:
            StoreDamagedError: this is something else.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StoreDamagedError("a table's definition in the workspace is no JSON", received=str(error)) from None
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
    """What ``CREATE SCAN`` said."""

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


class Catalog:
    """The tables of a workspace, which persist, and the scans of one session, which do not.

    Names are compared without regard to case. Secrets given in clear are known to this session only.
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
        """Return a table's definition, None if the catalog does not know it (Spark may)."""
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
        given = self._with_secrets.get(stored.name.lower())
        return given if given is not None and given.without_secrets() == stored else stored

    def add_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> bool:
        """Keep a definition. Defining the same again is no error, so that a script can be run again.

        Returns:
            Whether it is new.

        Raises:
            AlreadyExistsError: the name stands for another definition.
        """
        stored = definition.without_secrets()
        with self._workspace.write() as connection:
            rows = list(
                connection.execute("SELECT definition FROM definition WHERE name = ?", (definition.name.lower(),))
            )
            known = TableDefinition.from_json(rows[0][0]) if rows else None
            if known is not None and known != replace(stored, name=known.name) and not if_not_exists:
                raise AlreadyExistsError(
                    "a table of this name is defined in another way",
                    received=definition.name,
                    remedy=f"DROP TABLE {definition.name} first (this forgets the definition, not the rows)",
                )
            if known is None:
                connection.execute("INSERT INTO definition VALUES (?, ?)", (definition.name.lower(), stored.to_json()))
        kept = known or stored
        self._with_secrets[definition.name.lower()] = replace(definition, name=kept.name)
        return known is None

    def drop_table(self, name: str) -> bool:
        """Forget a definition; tell whether there was one."""
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
        """Keep a scan for this session; tell whether it is new. The same again is no error.

        Raises:
            AlreadyExistsError: the name stands for another scan.
        """
        known = self._scans.get(scan.name.lower())
        if known is not None and known != scan and not replace:
            raise AlreadyExistsError(
                "a scan of this name is defined in another way",
                received=scan.name,
                remedy="use CREATE OR REPLACE SCAN, or DROP SCAN first",
            )
        self._scans[scan.name.lower()] = scan
        return known is None

    def drop_scan(self, name: str) -> bool:
        return self._scans.pop(name.lower(), None) is not None
