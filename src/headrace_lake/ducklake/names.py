"""Names of tables: of a DuckLake, and of the database with its catalog.

``orders`` is a table of the DuckLake's schema ``main``, and ``sales.orders`` one of its schema ``sales``.
``postgresql:orders`` is a table of the database. headrace's own tables are in the database, too.
"""

from __future__ import annotations

import re

from headrace.errors import OptionError
from headrace.model.own_names import is_internal

DATABASE = "postgresql:"
# DuckDB takes other characters in quotes; names here need none.
_NAME = re.compile(r"[^\W\d][\w$ -]*(\.[^\W\d][\w$ -]*)?")
_LONGEST_NAME = 200


def in_database(name: str) -> str | None:
    """Return the name in the database of one of its own tables; None for a table of the DuckLake."""
    if name.startswith(DATABASE):
        return name.removeprefix(DATABASE)
    return name if is_internal(name) else None


def prefixed(name: str) -> str:
    """Return the name that a table of the database has in the store: the reverse of `in_database`."""
    return name if is_internal(name) else f"{DATABASE}{name}"


def check_name(name: str) -> None:
    """Raise `OptionError` for a name that no table of a DuckLake gets from headrace."""
    if not _NAME.fullmatch(name) or len(name.encode()) > _LONGEST_NAME:
        raise OptionError(
            "a DuckLake table cannot have this name",
            received=repr(name)[:200],
            valid="table or schema.table, each a letter or underscore and then letters, digits, spaces and _$-; or "
            f"{DATABASE}table for a table of the database",
        )
