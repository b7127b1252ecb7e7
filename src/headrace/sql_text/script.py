"""Scripts: their parts, the replacements in a part, and what all statements have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ScriptPart:
    """A part of a script, from ``start`` to ``end``. In ``script`` spaces replace the ``//`` comments."""

    script: str = field(repr=False)
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.script[self.start : self.end]

    @property
    def line(self) -> int:
        """The number of its first line, from 1."""
        return self.script.count("\n", 0, self.start) + 1


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


@dataclass(frozen=True)
class Name:
    """A name: one part, or several for a name with dots."""

    parts: tuple[str, ...]
    part: ScriptPart

    def __str__(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement, and its position in the script."""

    part: ScriptPart


@dataclass(frozen=True, kw_only=True)
class StreamBody(Statement, ABC):
    """The statement of a ``CREATE STREAM`` after the name and the options: what a stream does in each batch.

    ``target`` is the name of the table that it writes.
    """

    target: Name

    @property
    @abstractmethod
    def reads(self) -> ScriptPart:
        """The part of the statement that names the scans and tables that the stream reads."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The statement as the workspace stores it, from which it can be parsed again."""
