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

from headrace.errors import SqlError
from headrace.sql_text.lexer import Token, TokenKind, error_at, quote_name, string_value, tokenize
from headrace.sql_text.query_shape import Block, QueryShape, Relation, dotted_name
from headrace.sql_text.script import Edit, ScriptPart, edited
from headrace.streaming_sql.language.time_travel import TypesOf, time_travel_edits

_FUNCTIONS = ("TUMBLING", "HOPPING", "DELAY", "WATERMARK")
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")
_DURATION = re.compile(rf"(?:\d+(?:\.\d+)?\s+(?:{'|'.join(_UNITS)})s?\s*)+")
VALID_DURATION = f"such as interval 30 seconds or '1 hour 30 minutes'; units: {', '.join(_UNITS)}"


def uses_dialect(tokens: Sequence[Token]) -> bool:
    """Return whether the tokens call one of the dialect's functions."""
    return any(_is_call(tokens, index) for index in range(len(tokens)))


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


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    return (
        tokens[index].is_word(*_FUNCTIONS)
        and index + 1 < len(tokens)
        and tokens[index + 1].is_symbol("(")
        and not (index and tokens[index - 1].is_symbol("."))
    )


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
        self._tokens = tokens
        self._types_of = types_of
        self._shape = QueryShape(tokens)
        self._edits = list(edits)
        self._placed: dict[int, _Watermark] = {}
        self._done: set[int] = set()

    def result(self) -> str:
        for block in self._shape.blocks:
            self._delays(block, block.where)
            self._watermark_items(block)
        for index in range(len(self._tokens)):
            if _is_call(self._tokens, index):
                self._window_or_leftover(self._tokens[index], self._tokens[index + 1])
        return edited(self._part, self._edits)

    def _error(self, problem: str, token: Token, valid: str | None = None, remedy: str | None = None) -> SqlError:
        return error_at(problem, self._part.script, token.start, valid=valid, remedy=remedy)

    # -- windows ----------------------------------------------------------------------------------------

    def _window_or_leftover(self, function: Token, opening: Token) -> None:
        if function.start in self._done:
            return
        if function.is_word("DELAY"):
            raise self._error(
                "delay(column) < duration must be a condition of WHERE, combined with others by AND", function
            )
        if function.is_word("WATERMARK"):
            if self._is_clause_of_spark(opening):
                return
            raise self._error("WATERMARK(expression, duration) must be an item of a select list", function)
        arguments = self._arguments(opening)
        wanted = 2 if function.is_word("TUMBLING") else 3
        form = "TUMBLING(column, length)" if wanted == 2 else "HOPPING(column, length, slide)"
        if len(arguments) != wanted or not all(arguments):
            raise self._error(f"{function.text.upper()} takes {wanted} arguments", function, valid=form)
        self._edits.append(Edit(function.start, function.end, "window"))
        for argument in arguments[1:]:
            duration = self._duration(argument, function)
            self._edits.append(Edit(argument[0].start, argument[-1].end, f"'{duration}'"))

    def _is_clause_of_spark(self, opening: Token) -> bool:
        """Return whether this is Spark's own clause ``FROM t WATERMARK (expression) AS x DELAY OF …``."""
        end = self._shape.closing(opening).end
        following = [token for token in self._tokens if token.start >= end][:3]
        return any(token.is_word("DELAY") for token in following)

    def _arguments(self, opening: Token) -> list[tuple[Token, ...]]:
        """Return the tokens of each argument, including inner parentheses."""
        closing = self._shape.closing(opening)
        arguments: list[list[Token]] = [[]]
        depth = 0
        for token in self._tokens:
            if opening.start < token.start < closing.start:
                depth += token.is_symbol("(") - token.is_symbol(")")
                if depth == 0 and token.is_symbol(","):
                    arguments.append([])
                else:
                    arguments[-1].append(token)
        return [tuple(argument) for argument in arguments]

    def _duration(self, tokens: Sequence[Token], near: Token) -> str:
        """Read ``interval 1 minute``, ``INTERVAL '1' MINUTE``, ``interval '1 minute'`` or ``'1 minute'``."""
        place = tokens[0] if tokens else near
        words: list[str] = []
        for token in tokens[1:] if tokens and tokens[0].is_word("INTERVAL") else tokens:
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
        if near.is_word("TUMBLING", "HOPPING") and not re.search("[1-9]", duration):
            raise self._error("the length of a window cannot be 0", place)
        return duration

    # -- watermarks ---------------------------------------------------------------------------------------

    def _delays(self, block: Block, condition: Sequence[Token]) -> None:
        """Convert each ``delay(column) < duration`` that is combined with other conditions by AND."""
        waiting = [condition]
        while waiting:
            for conjunct in _conjuncts(waiting.pop()):
                if len(conjunct) == 2 and conjunct[0].is_symbol("("):
                    waiting.append(self._shape.inside(conjunct[0]).tokens)
                elif len(conjunct) > 3 and conjunct[0].is_word("DELAY") and conjunct[1].is_symbol("("):
                    self._delay(block, conjunct)

    def _delay(self, block: Block, conjunct: Sequence[Token]) -> None:
        function, opening, _, less, *limit = conjunct
        if not less.is_symbol("<") or not limit or any(token.is_word("OR") for token in limit):
            return
        column = self._shape.inside(opening).tokens
        if not column or dotted_name(column, 0)[1] != len(column) or not column[0].is_name:
            raise self._error("delay takes one column", function, valid="delay(column) < '2 minutes'")
        *qualifier, name = dotted_name(column, 0)[0]
        watermark = _Watermark(quote_name(name), None, self._duration(limit, function))
        self._place(block, qualifier, name, watermark, function)
        self._edits.append(Edit(function.start, limit[-1].end, "true"))
        self._done.add(function.start)

    def _watermark_items(self, block: Block) -> None:
        items = list(_split_at_commas(block.select))
        has_star = any(item[-1].is_symbol("*") for item in items if item and len(item) in (1, 3))
        for index, item in enumerate(items):
            if len(item) > 2 and item[0].is_word("WATERMARK") and item[1].is_symbol("("):
                alias = _alias_of(item[3:])
                if alias is not None or len(item) == 3:
                    self._watermark_item(block, item, alias, has_star, last=index + 1 == len(items))

    def _watermark_item(
        self, block: Block, item: Sequence[Token], alias: str | None, has_star: bool, last: bool
    ) -> None:
        function, opening = item[0], item[1]
        arguments = self._arguments(opening)
        if len(arguments) != 2 or not arguments[0]:
            raise self._error(
                "WATERMARK takes 2 arguments", function, valid="WATERMARK(expression, interval 10 seconds) [AS name]"
            )
        expression, limit = arguments
        duration = self._duration(limit, function)
        if dotted_name(expression, 0)[1] == len(expression) and expression[0].is_name:
            *qualifier, name = dotted_name(expression, 0)[0]
            shown = name if alias is None else alias
            also_named = None if shown.lower() == name.lower() else shown
            watermark = _Watermark(quote_name(name), None, duration, also_named)
            self._place(block, qualifier, name, watermark, function)
        else:
            if alias is None:
                raise self._error("an expression with a watermark needs a name: WATERMARK(…) AS name", function)
            shown = alias
            qualifier, text = self._unqualified(block, expression, function)
            self._place(block, qualifier, None, _Watermark(text, quote_name(alias), duration), function)
        # A star in the same list already includes the column.
        self._edits.append(self._without_item(item, last) if has_star else self._named_item(item, shown))
        self._done.add(function.start)

    def _named_item(self, item: Sequence[Token], name: str) -> Edit:
        return Edit(item[0].start, item[-1].end, quote_name(name))

    def _without_item(self, item: Sequence[Token], last: bool) -> Edit:
        """Remove an item with an adjacent comma."""
        if last:
            before = max(token.end for token in self._tokens if token.end <= item[0].start)
            return Edit(before - 1, item[-1].end, "")
        after = min(token.start for token in self._tokens if token.start >= item[-1].end)
        return Edit(item[0].start, after + 1, "")

    def _unqualified(self, block: Block, expression: Sequence[Token], function: Token) -> tuple[list[str], str]:
        """Return the qualifier of the columns in an expression, and the text of the expression without it."""
        pieces: list[str] = []
        qualifiers: set[str] = set()
        position = expression[0].start
        for index, token in enumerate(expression[:-2]):
            starts_name = token.is_name and not (index and expression[index - 1].is_symbol("."))
            qualifies = any(relation.answers_to([token.name]) for relation in block.relations if token.is_name)
            if starts_name and expression[index + 1].is_symbol(".") and qualifies:
                qualifiers.add(token.name.lower())
                pieces.append(self._part.script[position : token.start])
                position = expression[index + 1].end
        pieces.append(self._part.script[position : expression[-1].end])
        if len(qualifiers) > 1:
            raise self._error("the expression of a watermark can use columns of one relation only", function)
        return list(qualifiers), "".join(pieces)

    def _place(
        self, block: Block, qualifier: Sequence[str], column: str | None, watermark: _Watermark, function: Token
    ) -> None:
        relation = self._relation(block, qualifier, column, function)
        known = self._placed.get(relation.start)
        if known == watermark:
            return
        if known is not None or relation.watermarked:
            raise self._error("this relation already has a watermark; Spark allows one", function)
        self._placed[relation.start] = watermark
        named = "" if watermark.name is None else f" AS {watermark.name}"
        clause = f" WATERMARK {watermark.expression}{named} DELAY OF INTERVAL {watermark.duration}"
        if watermark.also_named is None:
            self._edits.append(Edit(relation.end, relation.end, clause))
            return
        # Both names have the watermark, so the query can use the new one in ON, WHERE and GROUP BY.
        opening = f"(SELECT *, {watermark.expression} AS {quote_name(watermark.also_named)} FROM "
        closing = f"{clause})"
        if relation.alias is None and relation.name is not None:
            closing += f" AS {quote_name(relation.name[-1])}"
        self._edits += (Edit(relation.start, relation.start, opening), Edit(relation.end, relation.end, closing))

    def _relation(self, block: Block, qualifier: Sequence[str], column: str | None, function: Token) -> Relation:
        candidates = [relation for relation in block.relations if not qualifier or relation.answers_to(qualifier)]
        if len(candidates) > 1 and column is not None and not qualifier:
            candidates = [relation for relation in candidates if self._has_column(relation, column)]
        if len(candidates) == 1:
            return candidates[0]
        if not block.relations:
            raise self._error("a watermark needs a FROM clause in the same SELECT", function)
        remedy = "write the column with its relation, such as delay(orders.ts)"
        if candidates:
            raise self._error("several relations could have this watermark", function, remedy=remedy)
        raise self._error("no relation of this FROM clause has this column", function, remedy=remedy)

    def _has_column(self, relation: Relation, column: str) -> bool:
        text = self._part.script[relation.start : relation.end]
        return column.lower() in (name.lower() for name in self._types_of(text))


def _conjuncts(condition: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """Split a condition at AND, except in ``BETWEEN a AND b``."""
    first, between = 0, False
    for index, token in enumerate(condition):
        if token.is_word("BETWEEN"):
            between = True
        elif token.is_word("AND"):
            if not between:
                yield condition[first:index]
                first = index + 1
            between = False
    yield condition[first:]


def _split_at_commas(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    first = 0
    for index, token in enumerate(tokens):
        if token.is_symbol(","):
            yield tokens[first:index]
            first = index + 1
    yield tokens[first:]


def _alias_of(tokens: Sequence[Token]) -> str | None:
    """Return the name in ``AS name`` or ``name``; None for other tokens."""
    if tokens and tokens[0].is_word("AS"):
        tokens = tokens[1:]
    return tokens[0].name if len(tokens) == 1 and tokens[0].is_name else None
