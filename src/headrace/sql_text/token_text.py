"""A text as tokens with matched brackets, from which parts are rendered with edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.errors import SqlError
from headrace.sql_text.lexer import Lexed, Token, TokenKind, error_at, tokenize

_PAIRS = {"(": ")", "[": "]"}
# The words with which an operator of a pipe begins.
_PIPED = (
    "SELECT", "EXTEND", "SET", "DROP", "AS", "WHERE", "AGGREGATE", "PIVOT", "UNPIVOT", "TABLESAMPLE", "ORDER", "SORT",
    "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "QUALIFY", "WINDOW", "UNION", "INTERSECT", "EXCEPT", "MINUS", "JOIN",
    "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL", "LATERAL",
)  # fmt: skip


class TokenText:
    """The tokens of one text. Ranges are pairs of token indices, of which the end is exclusive.

    Args:
        tokens: the tokens of a part of the text; by default all.
        strict: the text is a query whose brackets match. Else a bracket that is not closed ends with the text, and one
            that was not opened has no meaning.

    Attributes:
        tokens: the tokens, without a semicolon at the end.
        closing: the index of the closing bracket for the index of each opening one, inner ones first.

    Raises:
        SqlError: with ``strict``, the text is empty, or its brackets do not match.
    """

    def __init__(self, text: str, tokens: Sequence[Token] | None = None, *, strict: bool = True) -> None:
        lexed = tokenize(text) if tokens is None else Lexed(text, tuple(tokens))
        self._original = text
        self._text = lexed.text
        rest = list(lexed.tokens)
        while rest and rest[-1].is_symbol(";"):
            rest.pop()
        self.tokens: tuple[Token, ...] = tuple(rest)
        if strict and not rest:
            raise error_at("expected a query", text, len(text))
        self.closing = self._match_brackets(strict=strict)
        self._edits: list[tuple[int, int, str]] = []

    def _match_brackets(self, *, strict: bool) -> dict[int, int]:
        closing: dict[int, int] = {}
        waiting: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.is_symbol("(") or token.is_symbol("["):
                waiting.append(index)
            elif token.is_symbol(")") or token.is_symbol("]"):
                if waiting and _PAIRS[self.tokens[waiting[-1]].text] == token.text:
                    closing[waiting.pop()] = index
                elif strict:
                    raise self.error("this bracket was not opened", index)
        if strict and waiting:
            raise self.error("this bracket is not closed", waiting[-1])
        return closing | dict.fromkeys(reversed(waiting), len(self.tokens))

    # -- reading --------------------------------------------------------------------------------------

    def error(self, problem: str, index: int, *, remedy: str | None = None, received: str | None = None) -> SqlError:
        """Return an error with a caret at a token."""
        offset = self.tokens[index].start if index < len(self.tokens) else len(self._original)
        return error_at(problem, self._original, offset, remedy=remedy, received=received)

    def token(self, index: int) -> Token | None:
        return self.tokens[index] if 0 <= index < len(self.tokens) else None

    def is_word(self, index: int, *words: str) -> bool:
        token = self.token(index)
        return token is not None and token.is_word(*words)

    def is_symbol(self, index: int, symbol: str) -> bool:
        token = self.token(index)
        return token is not None and token.is_symbol(symbol)

    def is_name(self, index: int) -> bool:
        token = self.token(index)
        return token is not None and token.is_name

    def is_call(self, index: int) -> bool:
        """Return whether a token is the last part of a function's name, before its arguments."""
        return self.is_name(index) and self.is_symbol(index + 1, "(")

    def window_name(self, index: int) -> str | None:
        """Return the name of a window, ``w`` or ``(w)``, after OVER or AS; None for a window that is written there."""
        in_brackets = self.is_symbol(index, "(") and self.is_symbol(index + 2, ")")
        named = index + in_brackets
        return self.tokens[named].name if self.is_name(named) else None

    def begins_windows(self, index: int) -> bool:
        """Return whether a token begins the clause WINDOW. The function, and the column that it gives, do not."""
        return self.is_word(index, "WINDOW") and self.is_name(index + 1) and self.is_word(index + 2, "AS")

    def begins_pipe(self, index: int) -> bool:
        """Return whether a pipe begins at a token: ``|>``, or ``|`` before an operator, which Spark 4.2 added."""
        if not self.is_symbol(index, "|") or self.is_pair(index - 1, "|", "|"):
            return False
        return self.is_pair(index, "|", ">") or self.is_word(index + 1, *_PIPED)

    def is_star(self, index: int) -> bool:
        """Return whether a token is a star for columns, and not a multiplication."""
        if not self.is_symbol(index, "*"):
            return False
        before = self.token(index - 1)
        return before is not None and (
            before.is_word("SELECT", "ALL", "DISTINCT") or (before.kind is TokenKind.SYMBOL and before.text in ".,(")
        )

    def is_pair(self, index: int, first: str, second: str) -> bool:
        """Return whether two symbols without space between them begin at a token, such as ``->``."""
        return (
            self.is_symbol(index, first)
            and self.is_symbol(index + 1, second)
            and self.tokens[index].end == self.tokens[index + 1].start
        )

    def top(self, start: int, end: int) -> Iterator[int]:
        """Yield the indices of a range outside of brackets. Of brackets it yields the opening one."""
        while start < end:
            yield start
            start = self.after(start)

    def after(self, index: int) -> int:
        """Return the index after a token, or after the brackets that it opens."""
        return self.closing.get(index, index) + 1

    def without_brackets(self, start: int, end: int) -> tuple[int, int]:
        """Return a range without the brackets around all of it."""
        while self.is_symbol(start, "(") and self.after(start) == end:
            start, end = start + 1, end - 1
        return start, end

    def split(self, start: int, end: int) -> list[tuple[int, int]]:
        """Split a range at its commas outside of brackets."""
        parts = []
        for index in self.top(start, end):
            if self.is_symbol(index, ","):
                parts.append((start, index))
                start = index + 1
        return [*parts, (start, end)]

    def dotted(self, index: int) -> tuple[tuple[str, ...], int]:
        """Return the parts of the dotted name at an index, and the index after it."""
        parts = [self.tokens[index].name]
        index += 1
        while self.is_symbol(index, ".") and self.is_name(index + 1):
            parts.append(self.tokens[index + 1].name)
            index += 2
        return tuple(parts), index

    # -- rendering ------------------------------------------------------------------------------------

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace a range, in all later renderings."""
        self._edits.append((start, end, text))

    def insert(self, index: int, text: str) -> None:
        """Insert a text after the token before an index, in all later renderings."""
        self._edits.append((index, index, text))

    def render(self, start: int, end: int, edits: list[tuple[int, int, str]] | None = None) -> str:
        """Return the text of a range with its edits, or with other edits. Edits do not overlap."""
        chosen = self._edits if edits is None else edits
        pieces: list[str] = []
        if start >= end:
            return ""
        position, last = self.tokens[start].start, self.tokens[end - 1].end
        for first, after, text in sorted(chosen, key=lambda edit: edit[:2]):
            if not (start <= first and after <= end):
                continue
            # An insertion belongs to the token before it, also at the end of a range.
            begin = self.tokens[first].start if first < after else self.tokens[first - 1].end
            pieces += (self._text[position:begin], text)
            position = self.tokens[after - 1].end
        return "".join((*pieces, self._text[position:last]))

    def shown(self, start: int, end: int) -> str:
        """Return the text of a range in one line, for messages."""
        return " ".join(self.render(start, end, []).split())
