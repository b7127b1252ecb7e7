"""``MERGE INTO`` of a stream, as a value."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace.streaming_sql.language.statements import Name, ScriptPart, StreamBody


class MergeAction(enum.StrEnum):
    """What a WHEN clause does."""

    DELETE = "DELETE"
    UPDATE = "UPDATE"
    INSERT = "INSERT"


@dataclass(frozen=True, kw_only=True)
class MergeClause:
    """A WHEN clause.

    Attributes:
        part: the whole clause.
        condition: the condition after AND, if there is one.
        values: the expressions of columns, in the order of the text; None for ``*`` and for DELETE.
    """

    part: ScriptPart
    action: MergeAction
    condition: ScriptPart | None
    values: tuple[tuple[Name, ScriptPart], ...] | None

    @property
    def matched(self) -> bool:
        """Whether the clause is for source rows whose target row exists."""
        return self.action is not MergeAction.INSERT


@dataclass(frozen=True, kw_only=True)
class Merge(StreamBody):
    """``MERGE INTO target USING source ON … WHEN …``.

    Attributes:
        target_alias: the name before the target's columns.
        source: a name, or a query in parentheses.
        source_alias: the name before the source's columns.
        on: the condition after ON.
        clauses: the WHEN clauses, in order.
    """

    target_alias: str
    source: ScriptPart
    source_alias: str
    on: ScriptPart
    clauses: tuple[MergeClause, ...]
    using: ScriptPart

    @property
    def reads(self) -> ScriptPart:
        return self.using

    @property
    def text(self) -> str:
        return self.part.text
