"""The inner queries of a text, each as a text of its own, and the text with other queries in their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.sql_text.lexer import tokenize
from headrace.sql_text.query_text import QueryText, Range

Read: TypeAlias = Callable[[str], str | None]
"""Returns another query for the text of a query; None to leave it."""


class InnerQueries:
    """The queries in the brackets of a text.

    The text of each has what it names of the WITH clauses around it. A query that also names columns of the queries
    around it is no valid query by itself.
    """

    def __init__(self, text: str) -> None:
        self._text = QueryText(text, strict=True)
        self._definitions = self._text.definitions
        self._edits: list[tuple[int, int, str]] = []

    def replace(self, read: Read) -> None:
        """Replace queries, inner ones first, so that the text of an outer one has those in place of the inner ones."""
        text = self._text
        first, end = text.without_brackets(0, len(text.tokens))
        openings = [index for index in range(first, end) if text.is_symbol(index, "(") and text.is_query(index)]
        for opening in sorted(openings, key=text.closing.__getitem__):
            self._replace((opening + 1, text.closing[opening]), read)

    def replace_last(self, read: Read) -> None:
        """Replace the query at the end, after its WITH clause."""
        self._replace(self._last(), read)

    @property
    def has_unnamed(self) -> bool:
        """Whether the WITH clause of the text has a query that nothing names."""
        own = sum(each.last == len(self._text.tokens) for each in self._definitions)
        kept = QueryText(self.text)
        return own > sum(each.last == len(kept.tokens) for each in kept.definitions)

    @property
    def text(self) -> str:
        """The text with its replacements, and without the queries of WITH that it no longer names."""
        return self._alone(self._last())

    def _last(self) -> Range:
        end = len(self._text.tokens)
        return max((each.end for each in self._definitions if each.last == end), default=0), end

    def _replace(self, query: Range, read: Read) -> None:
        found = read(self._alone(query))
        if found is not None:
            start, end = query
            outside = [each for each in self._edits if each[1] <= start or end <= each[0]]
            self._edits = [*outside, (start, end, found)]

    def _alone(self, query: Range) -> str:
        """Return the text of a query, with the queries of WITH that it names."""
        text = self._text.render(*query, self._edits)
        names, needed = _names(text), list[str]()
        for each in reversed(self._definitions):
            if each.end <= query[0] < each.last and each.name in names:
                needed.insert(0, self._text.render(each.start, each.end, self._edits))
                names |= _names(needed[0])
        if not needed:
            return text
        first = tokenize(text).tokens[0]
        further = f", {text[first.end :]}" if first.is_word("WITH") else f" {text}"
        return f"WITH {', '.join(needed)}{further}"


def _names(text: str) -> set[str]:
    return {token.name.lower() for token in tokenize(text).tokens if token.is_name}
