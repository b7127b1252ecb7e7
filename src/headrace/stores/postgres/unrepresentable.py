"""Option ``unrepresentable``: what a column shows for values that its type does not have in headrace.

Such values are infinite dates and timestamps, ``NaN`` in a ``numeric(p,s)``, and arrays of several dimensions. By
default each is an error, which would stop a tunnel for good: the change stays in the log.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import OptionError, shown
from headrace.stores.postgres.names import TableName, quoted
from headrace.support import counters

_log = logging.getLogger("headrace")
_VALID = "COLUMN=error, COLUMN=null or COLUMN=text, separated by commas; TABLE.COLUMN for one table; or a JSON object"


class Choice(enum.StrEnum):
    """What becomes of a value that has no equal in headrace."""

    ERROR = "error"
    NULL = "null"
    TEXT = "text"
    """All values of the column are PostgreSQL's texts."""


@dataclass(frozen=True)
class Choices:
    """The choices for columns, by ``column`` or ``table.column``."""

    by_name: Mapping[str, Choice]

    @property
    def has_texts(self) -> bool:
        return Choice.TEXT in self.by_name.values()

    def of(self, table: TableName, column: str) -> Choice:
        """Return the choice for a column of a table."""
        names = (f"{table.text}.{column}", f"{quoted(table.schema)}.{quoted(table.table)}.{column}", column)
        return next((self.by_name[name] for name in names if name in self.by_name), Choice.ERROR)


NO_CHOICES: Final = Choices({})


def parse(option: Any) -> Choices:
    """Return the choices of an option: a text, or a mapping of names.

    Raises:
        OptionError: it has another form.
    """
    wrong = OptionError("option unrepresentable cannot be read", received=shown(option), valid=_VALID)
    if isinstance(option, str):
        try:
            option = json.loads(option) if option.lstrip().startswith("{") else _pairs(option)
        except ValueError:
            raise wrong from None
    if not isinstance(option, Mapping):
        raise wrong
    try:
        return Choices({_name(name): Choice(choice) for name, choice in option.items()})
    except ValueError:
        raise wrong from None


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    return {name.strip(): choice.strip().lower() for name, _, choice in pairs}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError
    return name


@dataclass(frozen=True)
class ShownAsNull:
    """A column whose unrepresentable values are null. It is called with their number: of changes, scans and others."""

    table: str
    column: str

    def __call__(self, count: int) -> None:
        if counters.enabled:
            counters.add("unrepresentable", self.table, self.column, seconds=0, count=count)
        _log.warning(
            "column %s of table %s: headrace's type does not have %d values, which are null (option unrepresentable)",
            self.column,
            self.table,
            count,
        )
