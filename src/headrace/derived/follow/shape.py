"""The parts of a followed query: its SELECTs, their items and relations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """An item of a select list: the tokens of its expression, and its alias.

    Attributes:
        kind: ``star``, ``column`` for a plain column, ``literal`` for one string or number, or ``expression``.
        path: for a column its dotted name, for a star its qualifier.
    """

    start: int
    end: int
    alias: str | None
    kind: str
    path: tuple[str, ...]

    @property
    def name(self) -> str | None:
        """The name of the output column, if the text determines it."""
        return self.alias if self.alias is not None else (self.path[-1] if self.kind == "column" else None)


@dataclass(frozen=True)
class Source:
    """A relation of a FROM clause.

    Attributes:
        names: the qualifiers of its columns: its alias, or the last parts of its name.
        scan: the scan's name, if it is one.
        query: the branches of the subquery or common table expression, if it is a followed one.
        span: the tokens of the relation, without its alias.
        alias: the name by which the query knows it if it has no alias; else None.
        renamed: the names that WITH gives to its columns; empty without a list.
    """

    names: tuple[tuple[str, ...], ...]
    scan: str | None = None
    query: tuple[Select, ...] = ()
    span: tuple[int, int] = (0, 0)
    alias: str | None = None
    renamed: tuple[str, ...] = ()

    @property
    def followed(self) -> bool:
        return self.scan is not None or bool(self.query)

    def answers_to(self, qualifier: tuple[str, ...]) -> bool:
        return tuple(part.lower() for part in qualifier) in self.names


@dataclass(frozen=True)
class Select:
    """One SELECT, as ranges of tokens; ``group`` and ``having`` are None without the clause."""

    start: int
    end: int
    items: tuple[Item, ...]
    source: tuple[int, int]
    where_end: int
    group: tuple[int, int] | None
    having: tuple[int, int] | None
    sources: tuple[Source, ...]

    @property
    def followed(self) -> Source | None:
        return next((source for source in self.sources if source.followed), None)
