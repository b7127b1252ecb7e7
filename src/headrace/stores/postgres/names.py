"""Names of tables: ``schema.table``, or ``table`` for a table of schema ``public``.

A part with a dot or a double quote is in double quotes, as in SQL: ``sales."orders.2026"``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg import sql

from headrace.errors import NotFoundError, UnsupportedError

PUBLIC = "public"
MAX_NAME_BYTES = 63
_PART = r'"(?:[^"]|"")+"|[^."]+'
_NAME = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<table>{_PART})", re.DOTALL)
_VALID = "table or schema.table; a part with a dot or a double quote is in double quotes; each part has up to 63 bytes"


@dataclass(frozen=True)
class TableName:
    """The schema and the name of a table."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Return the name of an existing table, or raise `NotFoundError` for a text that no table can have as name."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise NotFoundError("no such table", received=repr(text), valid=_VALID)
        return cls(PUBLIC if match["schema"] is None else _plain(match["schema"]), _plain(match["table"]))

    @classmethod
    def of_new(cls, text: str) -> TableName:
        """Return the name of a table to create, or raise `UnsupportedError` if PostgreSQL cannot keep it."""
        try:
            name = cls.parse(text)
        except NotFoundError:
            raise UnsupportedError("PostgreSQL has no table of this name", received=repr(text), valid=_VALID) from None
        check_name("table", name.schema)
        check_name("table", name.table)
        return name

    @property
    def text(self) -> str:
        """The shortest form."""
        table = quoted(self.table)
        return table if self.schema == PUBLIC else f"{quoted(self.schema)}.{table}"

    @property
    def sql(self) -> sql.Identifier:
        """The name in a statement."""
        return sql.Identifier(self.schema, self.table)


def check_name(kind: str, name: str) -> None:
    """Raise `UnsupportedError` for a name that PostgreSQL would cut or refuse."""
    if "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise UnsupportedError(
            f"PostgreSQL has no {kind} of this name",
            received=repr(name),
            valid=f"up to {MAX_NAME_BYTES} bytes in UTF-8, without the character NUL",
        )


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def quoted(part: str) -> str:
    """Return a part of a name as it is written in a name."""
    return '"' + part.replace('"', '""') + '"' if "." in part or '"' in part else part
