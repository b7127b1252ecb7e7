"""The tables and queues that a statement names.

A name in SQL is a table of the store, or a queue: ``orders``, ``"odd name"``, ``"//home/shop/orders"``. A name with a
schema, ``public.orders``, is a table whose name in the store has the two parts with a dot between them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import NotFoundError
from headrace.model.own_names import of_users
from headrace.ports import Queue, Store, Table

_NEAR = 3


@dataclass(frozen=True)
class Name:
    """A name of a table or queue in a statement, without its quotes.

    Attributes:
        schema: the part before the dot; None without one.
        name: the last part.
    """

    schema: str | None
    name: str

    @property
    def sql(self) -> str:
        """The name in a statement."""
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The names that the table can have in a store."""
        if self.schema is None:
            return (self.name,)
        # PostgreSQL's tables have quotes around a part with a dot.
        parts = [quoted(part) if "." in part or '"' in part else part for part in (self.schema, self.name)]
        return tuple(dict.fromkeys((".".join(parts), f"{self.schema}.{self.name}")))


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def find(store: Store, name: Name) -> Table | Queue:
    """Return the table or queue with a name, ignoring case if exactly one has it.

    Raises:
        NotFoundError: neither exists. The message shows near names.
    """
    for text in name.texts:
        try:
            return store.table(text)
        except NotFoundError:
            pass
        if store.capabilities.queues:
            try:
                return store.queue(text)
            except NotFoundError:
                pass
    tables, queues = of_users(store.tables()), store.queues() if store.capabilities.queues else []
    alike = [known for known in (*tables, *queues) if known.lower() in {text.lower() for text in name.texts}]
    if len(alike) == 1:
        return store.table(alike[0]) if alike[0] in tables else store.queue(alike[0])
    raise _missing(name, alike or [*tables, *queues])


def _missing(name: Name, known: Iterable[str]) -> NotFoundError:
    known = sorted(set(known))
    near = difflib.get_close_matches(name.texts[-1], known, n=_NEAR, cutoff=0.5)
    shown = [Name(None, text).sql if not re.fullmatch(r"\w+(\.\w+)?", text) else text for text in near or known[:10]]
    return NotFoundError(
        "no such table or queue",
        received=name.texts[-1],
        valid=shown if near or len(known) <= 10 else f"{', '.join(shown)}, … ({len(known)} in all)",
        remedy=f"did you mean {shown[0]}?" if near else "list them with `headrace table list`",
    )
