"""Values of an instance as JSON, in a table of the embedded store that clients cannot see."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.errors import NotFoundError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from headrace.ports import Store, Table

_Value = TypeVar("_Value", bound="DataclassInstance")


class JsonTable(Generic[_Value]):
    """Values by key.

    Args:
        store: the store of the instance.
        name: the name of the table. It is created with the first value.
        key: the name of the key column.
        column: the name of the column with the JSON.
        parse: returns a value from its parsed JSON. Without arguments it returns the value of a missing key.
    """

    def __init__(self, store: Store, name: str, key: str, column: str, parse: Callable[..., _Value]) -> None:
        self._store = store
        self._name = name
        self._key = key
        self._column = column
        self._parse = parse
        self._table: Table | None = None

    def get(self, key: str) -> _Value:
        """Return the value of a key; the default value if none is saved."""
        try:
            row = self._opened().get({self._key: key})
        except NotFoundError:
            return self._parse()
        return self._parse() if row is None else self._parse(**json.loads(row[self._column]))

    def save(self, key: str, value: _Value) -> None:
        """Save the value of a key."""
        columns: dict[str, Any] = {self._key: "string", self._column: "string"}
        table = self._store.create_table(self._name, columns, self._key, exist_ok=True)
        table.put({self._key: key, self._column: json.dumps(dataclasses.asdict(value))})

    def delete(self, key: str) -> None:
        """Delete the value of a key, if there is one."""
        with contextlib.suppress(NotFoundError):
            self._opened().delete({self._key: key})

    def _opened(self) -> Table:
        if self._table is None:
            self._table = self._store.table(self._name)
        return self._table
