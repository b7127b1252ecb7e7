"""``CREATE STREAM … MIRROR``: the statement of a mirror."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.script import Name, ScriptPart, StreamBody


@dataclass(frozen=True, kw_only=True)
class Mirror(StreamBody):
    """``MIRROR source INTO target [WITH HISTORY]``; the source is a table or a streaming scan of a table."""

    source: Name
    history: bool

    @property
    def reads(self) -> ScriptPart:
        query = f"FROM {self.source.part.text}"
        return ScriptPart(query, 0, len(query))

    @property
    def text(self) -> str:
        history = " WITH HISTORY" if self.history else ""
        return f"MIRROR {self.source.part.text} INTO {self.target.part.text}{history}"


def mirror_statement(cursor: Cursor) -> Mirror:
    """Read the statement from the word ``MIRROR`` on.

    Raises:
        SqlError: it has another form.
    """
    start = cursor.start
    cursor.need_words("MIRROR")
    source = cursor.need_name("the table to mirror")
    cursor.need_words("INTO")
    target = cursor.need_name("the target table")
    end, history = target.part.end, False
    if cursor.take_words("WITH"):
        end = cursor.start + len("HISTORY")
        cursor.need_words("HISTORY")
        history = True
    return Mirror(part=cursor.part(start, end), target=target, source=source, history=history)
