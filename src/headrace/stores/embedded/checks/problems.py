"""Values of the checks: a problem, and the statements that repair it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import apsw


class Repair(NamedTuple):
    """A SQL statement, and what it does, for messages.

    A repair deletes only what nothing refers to, or computes again what other rows determine.
    """

    does: str
    sql: str
    bindings: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A violated invariant.

    Attributes:
        found: the place and the contradiction.
        repairs: the statements that repair it; empty if no safe repair is known.
    """

    found: str
    repairs: tuple[Repair, ...] = ()


Check: TypeAlias = Callable[[apsw.Connection], Iterator[Problem]]
"""Yields the violations of some invariants, inside the caller's transaction."""


def orphans(connection: apsw.Connection, table: str, condition: str, what: str) -> Iterator[Problem]:
    """Yield a problem if a SQLite table has rows that nothing refers to, or that refer to nothing.

    Args:
        condition: selects these rows.
        what: names them in a message.
    """
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}")
    if count:
        yield Problem(f"{count} {what}", (Repair(f"delete {count} {what}", f"DELETE FROM {table} WHERE {condition}"),))
