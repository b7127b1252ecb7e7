"""The prefix of the names that headrace gives to its own tables, columns and views. No name of a user begins so."""

from __future__ import annotations

import re
from collections.abc import Iterable

PREFIX = "__headrace_"


def is_own(name: str) -> bool:
    """Return whether a column or view is reserved for headrace."""
    return name.lower().startswith(PREFIX)


def is_internal(table: str) -> bool:
    """Return whether headrace keeps a table for itself. `headrace table list` does not show it by default."""
    # Before the last part is a directory, or a schema of PostgreSQL, of which a part can be in quotes.
    return re.split("[/.]", table)[-1].strip('"').startswith(PREFIX)


def of_users(tables: Iterable[str]) -> list[str]:
    """Return the names of the users' tables among some, as lists and messages show them."""
    return [name for name in tables if not is_internal(name)]
