"""The parts of a followed query: its SELECTs, their items and relations, and where columns come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
        renamed: the names in its list of columns; empty without a list.
    """

    names: tuple[tuple[str, ...], ...]
    scan: str | None = None
    query: tuple[Select, ...] = ()
    renamed: tuple[str, ...] = ()

    @property
    def followed(self) -> bool:
        return self.scan is not None or bool(self.query)

    def answers_to(self, qualifier: tuple[str, ...]) -> bool:
        return tuple(part.lower() for part in qualifier) in self.names


@dataclass(frozen=True)
class Select:
    """One SELECT with a FROM clause, as ranges of tokens; ``group`` and ``having`` are None without the clause."""

    start: int
    items: tuple[Item, ...]
    source: tuple[int, int]
    where_end: int
    group: tuple[int, int] | None
    having: tuple[int, int] | None
    sources: tuple[Source, ...]

    @property
    def followed(self) -> Source | None:
        return next((source for source in self.sources if source.followed), None)

    def relation_of(self, parts: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
        """Split a dotted name in lower case into the relation that its first parts name, and the rest."""
        for length in range(min(len(parts) - 1, 3), 0, -1):
            for number, source in enumerate(self.sources):
                if source.answers_to(parts[:length]):
                    return str(number), parts[length:]
        return None, parts


def origins(select: Select, columns_of: Mapping[str, Collection[str]]) -> dict[str, tuple[str, str]]:
    """Return the output columns that are plain copies of columns of a scan.

    Args:
        columns_of: the columns of each scan.

    Returns:
        (scan, column) for each output column's name in lower case.
    """
    source = select.followed
    if source is None:
        return {}
    inner = _columns(source, columns_of)
    found: dict[str, tuple[str, str]] = {}
    for item in select.items:
        origin = None
        if item.kind == "star":
            qualifier = tuple(part.lower() for part in item.path)
            if not qualifier or source.answers_to(qualifier):
                found |= inner
        elif item.kind == "column":
            parts = tuple(part.lower() for part in item.path)
            relation, rest = select.relation_of(parts)
            if len(rest) == 1 and (relation is None or select.sources[int(relation)] is source):
                origin = inner.get(rest[0])
        if item.kind != "star" and item.name is not None:
            # It can have the name of a column that a star excepts.
            found.pop(item.name.lower(), None)
            if origin is not None:
                found[item.name.lower()] = origin
    return found


def _columns(source: Source, columns_of: Mapping[str, Collection[str]]) -> dict[str, tuple[str, str]]:
    """Return the origins of a source's columns, by name in lower case, in the columns' order."""
    if source.scan is not None:
        names = {column.lower(): (source.scan, column) for column in columns_of[source.scan]}
    elif len(source.query) == 1:
        names = origins(source.query[0], columns_of)
    else:
        return {}
    if not source.renamed:
        return names
    if source.scan is None:
        # A column before a renamed one can be an expression, so positions are not those of the origins.
        items = source.query[0].items
        if any(item.kind == "star" for item in items) or len(items) != len(source.renamed):
            return {}
        old = [str(item.name).lower() if item.name is not None else "" for item in items]
        return {new.lower(): names[each] for new, each in zip(source.renamed, old, strict=True) if each in names}
    return {new.lower(): origin for new, origin in zip(source.renamed, names.values(), strict=False)}
