"""What the names of a SELECT mean: the relations of its FROM clause, and those of the queries around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.derived.gathering.model import Origin, Output


@dataclass
class Visible:
    """A relation of FROM as names see it.

    Attributes:
        columns: its columns; None if they are not known.
        hides: it has further columns, whose names are not known.
    """

    qualifiers: tuple[str, ...]
    columns: dict[str, Origin | None] | None
    hides: bool = False


@dataclass
class Scope:
    """The relations that the names of a SELECT can mean."""

    outer: Scope | None
    relations: list[Visible] = field(default_factory=list)
    merged: bool = False
    """Whether columns of several relations are one, so that a star has another order."""
    rows: list[int] = field(default_factory=list)
    """The relations whose rows make a row of the SELECT."""
    star: Sequence[Output] | None = None
    """The columns of a star; None if they are not known."""

    def origin(self, parts: Sequence[str]) -> Origin | None:
        """Return the columns that a name means; None if it is computed, or not certain."""
        *qualifier, name = (part.lower() for part in parts)
        found: list[Origin | None] = []
        for relation in self.relations:
            named = tuple(qualifier) == relation.qualifiers[-len(qualifier) :] if qualifier else True
            if relation.columns is None and (named or not relation.qualifiers):
                return None
            if not named or relation.columns is None:
                continue
            if name in relation.columns:
                found.append(relation.columns[name])
        if found:
            return found[0] if len(found) == 1 else None
        if self.outer is None or self._has_field(qualifier) or any(each.hides for each in self.relations):
            return None
        return self.outer.origin(parts)

    def _has_field(self, qualifier: Sequence[str]) -> bool:
        """Return whether a qualified name can be a field of a column in this scope, or names one of its relations."""
        return any(
            tuple(qualifier[-1:]) == relation.qualifiers[-1:] or qualifier[0] in (relation.columns or ())
            for relation in self.relations
            if qualifier
        )


def alike(left: str, right: str) -> bool:
    return left.lower() == right.lower()
