"""Several tables by names and patterns such as ``public.*``; ``!public.log_*`` leaves tables out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from psycopg import sql

from headrace.errors import NotFoundError, OptionError
from headrace.model.own_names import PREFIX
from headrace.stores.postgres.names import TableName, quoted

_LEFT_OUT = "!"
# Tables that a publication can have. Changes of a partition have the name of its table.
_TABLES = sql.SQL(
    """
SELECT n.nspname::text, c.relname::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition AND NOT starts_with(c.relname, {})
    AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', {})
ORDER BY 1, 2
"""
)


class TablePattern(NamedTuple):
    """A pattern of names; ``*`` in the schema or in the table stands for any text.

    Attributes:
        left_out: the tables are left out of those of the other patterns.
    """

    schema: str
    table: str
    left_out: bool

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        """Return the pattern of a text, or raise `NotFoundError` for a text that cannot be the name of a table."""
        name = TableName.parse(text.removeprefix(_LEFT_OUT))
        return cls(name.schema, name.table, text.startswith(_LEFT_OUT))

    @property
    def text(self) -> str:
        """The pattern as `parse` reads it in a text with others."""
        return f"{_LEFT_OUT if self.left_out else ''}{_quoted(self.schema)}.{_quoted(self.table)}"

    def matches(self, name: TableName) -> bool:
        return _matches(self.schema, name.schema) and _matches(self.table, name.table)


def parse(texts: str | Sequence[str]) -> list[TablePattern]:
    """Return the patterns of a sequence, or of one text, which has them separated by commas outside of double quotes.

    Raises:
        OptionError: no text names tables to include.
    """
    patterns = [TablePattern.parse(part) for part in (_parts(texts) if isinstance(texts, str) else texts)]
    if all(pattern.left_out for pattern in patterns):
        raise OptionError(
            "a tunnel of several tables needs their names", received=texts, valid="names and patterns: public.*"
        )
    return patterns


def is_pattern(text: str) -> bool:
    """Return whether a text that names the table of a tunnel names several tables."""
    return "*" in text or "," in text


def text_of(patterns: Sequence[TablePattern]) -> str:
    """Return patterns as the name of the table of their tunnel."""
    return ", ".join(pattern.text for pattern in patterns)


def matching(
    connection: psycopg.Connection, patterns: Sequence[TablePattern], own: str, *, missing_ok: bool = False
) -> list[TableName]:
    """Return the tables that match, sorted by schema and name.

    Args:
        own: the schema of headrace's own tables.

    Raises:
        NotFoundError: a pattern matches no table, and ``missing_ok`` is not set.
    """
    tables = [TableName(*row) for row in connection.execute(_TABLES.format(sql.Literal(PREFIX), sql.Literal(own)))]
    for pattern in patterns:
        if not (missing_ok or pattern.left_out or any(map(pattern.matches, tables))):
            raise NotFoundError("no such table", received=pattern.text, valid=[name.text for name in tables])
    return [name for name in tables if _match(patterns, name)]


def covers(patterns: Sequence[TablePattern], name: TableName, own: str) -> bool:
    """Return whether a table, which may not exist yet, is one that a tunnel with these patterns follows or takes in.

    Args:
        own: the schema of headrace's own tables.
    """
    return name.schema != own and not name.table.startswith(PREFIX) and _match(patterns, name)


def without(patterns: str, names: Sequence[str]) -> str:
    """Return patterns that also leave out some tables."""
    return text_of(parse([*_parts(patterns), *(f"{_LEFT_OUT}{name}" for name in names)]))


def _parts(text: str) -> list[str]:
    parts = [""]
    # Every other piece is in double quotes.
    for place, piece in enumerate(text.split('"')):
        more, *others = [piece] if place % 2 else piece.split(",")
        parts[-1] += f'"{more}' if place else more
        parts += others
    return [part.strip() for part in parts]


def _quoted(part: str) -> str:
    plain = "," not in part and not part.startswith(_LEFT_OUT) and part == part.strip()
    return quoted(part) if plain else '"' + part.replace('"', '""') + '"'


def _match(patterns: Sequence[TablePattern], name: TableName) -> bool:
    """Return whether a pattern includes a name, and none leaves it out."""
    kinds = {pattern.left_out for pattern in patterns if pattern.matches(name)}
    return kinds == {False}


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
