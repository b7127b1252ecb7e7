"""The dialect's time functions as Spark SQL, and times of histories (`time_travel`).

``TUMBLING`` and ``HOPPING`` become Spark's ``window``. ``DELAY`` and ``WATERMARK`` become a clause of a relation:
``FROM t WATERMARK ts DELAY OF INTERVAL 2 minutes``. `DataFrame.withWatermark` on the view of a scan is not used: it
would apply to all queries on the scan, and it cannot be applied to subqueries.

User-defined functions with one of these names are called in backquotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import SqlError
from headrace.sql_text.lexer import Token, TokenKind, error_at, quote_name, string_value, tokenize
from headrace.sql_text.query_text import Block, QueryText, Range, Relation
from headrace.sql_text.script import Edit, ScriptPart, edited
from headrace.streaming_sql.language.time_travel import TypesOf, time_travel_edits

_FUNCTIONS = ("TUMBLING", "HOPPING", "DELAY", "WATERMARK")
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")
_DURATION = re.compile(rf"(?:\d+(?:\.\d+)?\s+(?:{'|'.join(_UNITS)})s?\s*)+")
VALID_DURATION = f"such as interval 30 seconds or '1 hour 30 minutes'; units: {', '.join(_UNITS)}"


def uses_dialect(tokens: Sequence[Token]) -> bool:
    """Return whether the tokens call one of the dialect's functions."""
    return next(_calls(tokens), None) is not None


def rewrite(part: ScriptPart, types_of: TypesOf) -> str:
    """Return a part of a script as Spark SQL.

    Args:
        types_of: is called for relations with ``TIMESTAMP AS OF``, and if the column of a watermark can belong to
            several relations.

    Raises:
        SqlError: a duration or the position of a watermark is invalid; with line, column and caret.
    """
    tokens = [token for token in tokenize(part.script).tokens if part.start <= token.start < part.end]
    edits = time_travel_edits(part, tokens, types_of)
    if not uses_dialect(tokens):
        return edited(part, edits)
    return _Rewriter(part, tokens, types_of, edits).result()


def _calls(tokens: Sequence[Token]) -> Iterator[int]:
    """Yield the index of each call of one of the dialect's functions."""
    for index, (token, following) in enumerate(pairwise(tokens)):
        qualified = index and tokens[index - 1].is_symbol(".")
        if token.is_word(*_FUNCTIONS) and following.is_symbol("(") and not qualified:
            yield index


@dataclass(frozen=True)
class _Watermark:
    """A watermark on a relation. ``expression`` is Spark SQL, and has a ``name`` unless it is a column.

    ``also_named`` is a second name of the column.
    """

    expression: str
    name: str | None
    duration: str
    also_named: str | None = None


class _Rewriter:
    def __init__(self, part: ScriptPart, tokens: Sequence[Token], types_of: TypesOf, edits: Sequence[Edit]) -> None:
        self._part = part
        self._text = QueryText(part.script, tokens)
        self._types_of = types_of
        self._edits = list(edits)
        self._placed: dict[int, _Watermark] = {}
        self._done: set[int] = set()

    def result(self) -> str:
        for block in self._text.blocks():
            self._delays(block)
            self._watermark_items(block)
        for index in _calls(self._text.tokens):
            if index not in self._done:
                self._window_or_leftover(index)
        return edited(self._part, self._edits)

    def _error(self, problem: str, index: int, valid: str | None = None, remedy: str | None = None) -> SqlError:
        return error_at(problem, self._part.script, self._text.tokens[index].start, valid=valid, remedy=remedy)

    def _offsets(self, start: int, end: int) -> tuple[int, int]:
        """Return where a range begins and ends in the script."""
        return self._text.tokens[start].start, self._text.tokens[end - 1].end

    def _replace(self, start: int, end: int, text: str) -> None:
        self._edits.append(Edit(*self._offsets(start, end), text))

    # -- windows ----------------------------------------------------------------------------------------

    def _window_or_leftover(self, function: int) -> None:
        text = self._text
        if text.is_word(function, "DELAY"):
            raise self._error(
                "delay(column) < duration must be a condition of WHERE, combined with others by AND", function
            )
        if text.is_word(function, "WATERMARK"):
            after = text.after(function + 1)
            # Spark has a clause FROM t WATERMARK (expression) AS x DELAY OF ….
            if any(text.is_word(index, "DELAY") for index in range(after, after + 3)):
                return
            raise self._error("WATERMARK(expression, duration) must be an item of a select list", function)
        arguments = self._arguments(function)
        wanted = 2 if text.is_word(function, "TUMBLING") else 3
        form = "TUMBLING(column, length)" if wanted == 2 else "HOPPING(column, length, slide)"
        if len(arguments) != wanted or any(start >= end for start, end in arguments):
            name = text.tokens[function].text.upper()
            raise self._error(f"{name} takes {wanted} arguments", function, valid=form)
        self._replace(function, function + 1, "window")
        for argument in arguments[1:]:
            self._replace(*argument, f"'{self._duration(argument, function)}'")

    def _arguments(self, function: int) -> list[Range]:
        return self._text.split(function + 2, self._text.closing[function + 1])

    def _duration(self, argument: Range, function: int) -> str:
        """Read ``interval 1 minute``, ``INTERVAL '1' MINUTE``, ``interval '1 minute'`` or ``'1 minute'``."""
        start, end = argument
        place = start if start < end else function
        words: list[str] = []
        for token in self._text.tokens[start + self._text.is_word(start, "INTERVAL") : end]:
            if token.kind is TokenKind.STRING:
                try:
                    words.append(string_value(token))
                except ValueError:
                    words.append("?")
            else:
                words.append(token.text)
        duration = " ".join(" ".join(words).lower().split())
        if not _DURATION.fullmatch(duration):
            raise self._error("this is not a duration", place, valid=VALID_DURATION)
        if self._text.is_word(function, "TUMBLING", "HOPPING") and not re.search("[1-9]", duration):
            raise self._error("the length of a window cannot be 0", place)
        return duration

    # -- watermarks ---------------------------------------------------------------------------------------

    def _delays(self, block: Block) -> None:
        """Convert each ``delay(column) < duration`` that is combined with other conditions by AND."""
        text = self._text
        for start, end in text.conjuncts(*block.where):
            if text.is_word(start, "DELAY") and text.is_symbol(start + 1, "(") and text.after(start + 1) < end:
                self._delay(block, start, end)

    def _delay(self, block: Block, function: int, end: int) -> None:
        text, closing = self._text, self._text.closing[function + 1]
        less, limit = closing + 1, (closing + 2, end)
        if not text.is_symbol(less, "<") or limit[0] >= end or any(text.is_word(i, "OR") for i in text.top(*limit)):
            return
        names = self._column(function + 2, closing)
        if names is None:
            raise self._error("delay takes one column", function, valid="delay(column) < '2 minutes'")
        *qualifier, name = names
        watermark = _Watermark(quote_name(name), None, self._duration(limit, function))
        self._place(block, qualifier, name, watermark, function)
        self._replace(function, end, "true")
        self._done.add(function)

    def _column(self, start: int, end: int) -> tuple[str, ...] | None:
        """Return the parts of the name that a range is; None for other ranges."""
        if not self._text.is_name(start):
            return None
        names, after = self._text.dotted(start)
        return names if after == end else None

    def _watermark_items(self, block: Block) -> None:
        text = self._text
        items = text.split(*block.select)
        has_star = any(text.is_symbol(end - 1, "*") for start, end in items if end - start in (1, 3))
        for start, end in items:
            if text.is_word(start, "WATERMARK") and text.is_symbol(start + 1, "(") and text.after(start + 1) <= end:
                alias = self._alias(text.after(start + 1), end)
                if alias is not None or text.after(start + 1) == end:
                    self._watermark_item(block, start, end, alias, has_star)

    def _alias(self, start: int, end: int) -> str | None:
        """Return the name in ``AS name`` or ``name``; None for other tokens."""
        start += self._text.is_word(start, "AS")
        return self._text.tokens[start].name if start + 1 == end and self._text.is_name(start) else None

    def _watermark_item(self, block: Block, start: int, end: int, alias: str | None, has_star: bool) -> None:
        arguments = self._arguments(start)
        if len(arguments) != 2 or arguments[0][0] >= arguments[0][1]:
            raise self._error(
                "WATERMARK takes 2 arguments", start, valid="WATERMARK(expression, interval 10 seconds) [AS name]"
            )
        expression, limit = arguments
        duration = self._duration(limit, start)
        names = self._column(*expression)
        if names is not None:
            *qualifier, name = names
            shown = name if alias is None else alias
            also_named = None if shown.lower() == name.lower() else shown
            self._place(block, qualifier, name, _Watermark(quote_name(name), None, duration, also_named), start)
        else:
            if alias is None:
                raise self._error("an expression with a watermark needs a name: WATERMARK(…) AS name", start)
            shown = alias
            qualifier, text = self._unqualified(block, *expression, start)
            self._place(block, qualifier, None, _Watermark(text, quote_name(alias), duration), start)
        if not has_star:
            self._replace(start, end, quote_name(shown))
        elif end == block.select[1]:
            # A star in the same list already includes the column. The item goes with an adjacent comma.
            self._replace(start - 1, end, "")
        else:
            self._replace(start, end + 1, "")
        self._done.add(start)

    def _unqualified(self, block: Block, start: int, end: int, function: int) -> tuple[list[str], str]:
        """Return the qualifier of the columns in an expression, and the text of the expression without it."""
        text, relations = self._text, self._text.all_relations(block)
        pieces: list[str] = []
        qualifiers: set[str] = set()
        position, last = self._offsets(start, end)
        for index in range(start, end - 2):
            token = text.tokens[index]
            starts_name = token.is_name and not (index > start and text.is_symbol(index - 1, "."))
            if starts_name and text.is_symbol(index + 1, ".") and any(r.answers_to([token.name]) for r in relations):
                qualifiers.add(token.name.lower())
                pieces.append(self._part.script[position : token.start])
                position = text.tokens[index + 1].end
        pieces.append(self._part.script[position:last])
        if len(qualifiers) > 1:
            raise self._error("the expression of a watermark can use columns of one relation only", function)
        return list(qualifiers), "".join(pieces)

    def _place(
        self, block: Block, qualifier: Sequence[str], column: str | None, watermark: _Watermark, function: int
    ) -> None:
        relation = self._relation(block, qualifier, column, function)
        known = self._placed.get(relation.start)
        if known == watermark:
            return
        if known is not None or self._text.is_word(relation.end, "WATERMARK"):
            raise self._error("this relation already has a watermark; Spark allows one", function)
        self._placed[relation.start] = watermark
        start, end = self._offsets(relation.start, relation.end)
        named = "" if watermark.name is None else f" AS {watermark.name}"
        clause = f" WATERMARK {watermark.expression}{named} DELAY OF INTERVAL {watermark.duration}"
        if watermark.also_named is None:
            self._edits.append(Edit(end, end, clause))
            return
        # Both names have the watermark, so the query can use the new one in ON, WHERE and GROUP BY.
        opening = f"(SELECT *, {watermark.expression} AS {quote_name(watermark.also_named)} FROM "
        alias = "" if relation.implied_alias is None else f" AS {quote_name(relation.implied_alias)}"
        self._edits += (Edit(start, start, opening), Edit(end, end, f"{clause}){alias}"))

    def _relation(self, block: Block, qualifier: Sequence[str], column: str | None, function: int) -> Relation:
        relations = self._text.all_relations(block)
        candidates = [relation for relation in relations if not qualifier or relation.answers_to(qualifier)]
        if len(candidates) > 1 and column is not None and not qualifier:
            candidates = [relation for relation in candidates if self._has_column(relation, column)]
        if len(candidates) == 1:
            return candidates[0]
        if not relations:
            raise self._error("a watermark needs a FROM clause in the same SELECT", function)
        remedy = "write the column with its relation, such as delay(orders.ts)"
        if candidates:
            raise self._error("several relations could have this watermark", function, remedy=remedy)
        raise self._error("no relation of this FROM clause has this column", function, remedy=remedy)

    def _has_column(self, relation: Relation, column: str) -> bool:
        start, end = self._offsets(relation.start, relation.end)
        return column.lower() in (name.lower() for name in self._types_of(self._part.script[start:end]))
