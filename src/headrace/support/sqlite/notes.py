"""Which executions of a statement have found a row.

``executemany`` tells only how many rows it has changed in all. Here a condition of the statement calls an SQL function,
which notes the number of the execution. The function is `dict.setdefault`, so no Python code runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import apsw
import numpy as np
import numpy.typing as npt

NOTED = "headrace_note(?, ?, 1)"
"""A condition that is always true, for the end of a statement. SQLite evaluates it for each row that is found."""


def provide_notes(connection: apsw.Connection) -> None:
    """Give a connection the function of `NOTED`."""
    connection.create_scalar_function("headrace_note", cast(Any, dict.setdefault), 3)


def execute_noted(
    connection: apsw.Connection, statement: str, columns: Sequence[Sequence[Any]]
) -> npt.NDArray[np.bool_]:
    """Execute a statement for each row of some columns, and return which executions have found a row.

    Args:
        connection: a connection with `provide_notes`.
        statement: SQL with a parameter for each column, and the condition `NOTED` at the end.
        columns: the values of the parameters, all of the same length; at least one column.
    """
    count = len(columns[0])
    notes: dict[int, int] = {}
    bindings = zip(*columns, itertools.repeat(apsw.pyobject(notes), count), range(count), strict=True)
    connection.executemany(statement, bindings)
    found = np.zeros(count, np.bool_)
    found[np.fromiter(notes, np.intp, len(notes))] = True
    return found
