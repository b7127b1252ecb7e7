"""Replacements in the text of a statement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.streaming_sql.language.statements import ScriptPart


@dataclass(frozen=True)
class Edit:
    """A replacement of the text from ``start`` to ``end`` of a script; an insertion if both are equal."""

    start: int
    end: int
    text: str


def edited(part: ScriptPart, edits: Iterable[Edit]) -> str:
    """Return the text of a part with its replacements, which do not overlap."""
    pieces: list[str] = []
    position = part.start
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += (part.script[position : edit.start], edit.text)
        position = edit.end
    return "".join((*pieces, part.script[position : part.end]))
