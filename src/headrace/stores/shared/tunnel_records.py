"""The transactions of a store over the tables of its tunnels.

Statements are in PostgreSQL's dialect with placeholders ``%s``, and name the tables in a schema ``headrace``. They use
only what SQLite has too, except ``FOR NO KEY UPDATE`` at the end of a statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, LiteralString, Protocol, TypeVar

from headrace.errors import NotFoundError


class Cursor(Protocol):
    """The rows that a statement returns."""

    def __iter__(self) -> Iterator[tuple[Any, ...]]: ...

    def fetchone(self) -> tuple[Any, ...] | None: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class TunnelStatements(Protocol):
    """Statements in one transaction."""

    def execute(self, statement: LiteralString, parameters: Sequence[object] = ()) -> Cursor: ...


S = TypeVar("S", bound=TunnelStatements)
Result = TypeVar("Result")


class Records(ABC, Generic[S]):
    """Transactions over the tables of tunnels."""

    @abstractmethod
    def run(self, work: Callable[[S], Result], *, repeatable: bool = True) -> Result:
        """Run a function in a write transaction.

        Args:
            repeatable: the function changes nothing more when it runs again after its commit. A store may repeat it.
        """

    @abstractmethod
    def read(self, work: Callable[[S], Result]) -> Result:
        """Run a function that changes nothing, all in one transaction. It may lock a tunnel."""

    @abstractmethod
    def query(self, statement: LiteralString, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement that only reads, and return its rows."""


def lock_tunnel(statements: TunnelStatements, tunnel_id: str) -> str | None:
    """Lock the row of a tunnel until the end of the transaction; return its reader.

    Raises:
        NotFoundError: the tunnel was dropped.
    """
    row = statements.execute(
        "SELECT reader FROM headrace.tunnel WHERE id = %s FOR NO KEY UPDATE", (tunnel_id,)
    ).fetchone()
    if row is None:
        raise NotFoundError("the tunnel was dropped", received=tunnel_id, remedy="create a new tunnel")
    reader: str | None = row[0]
    return reader
