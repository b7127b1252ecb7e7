"""``t TIMESTAMP AS OF time`` over the history of a mirror: the rows that the source had at that time.

The syntax is Spark's. For tables of other formats, the clause stays for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.derived.mirror.history import HISTORY_COLUMNS, VALID_FROM, VALID_TO
from headrace.model.tables.change_columns import CHANGE_TYPE
from headrace.sql_text.lexer import Token, TokenKind, error_at, quote_name
from headrace.sql_text.script import Edit, ScriptPart

TypesOf = Callable[[str], Mapping[str, str]]
"""Returns the columns of a relation, given as SQL text, with their types in Spark SQL; empty if they are unknown."""

_ENDS = (
    "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "QUALIFY",
    "UNION", "INTERSECT", "EXCEPT", "MINUS", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI",
    "NATURAL", "ON", "USING", "AS", "TABLESAMPLE", "LATERAL", "PIVOT", "UNPIVOT", "WATERMARK", "FROM", "WITH",
)  # fmt: skip
_UNITS = (
    "YEAR", "YEARS", "QUARTER", "QUARTERS", "MONTH", "MONTHS", "WEEK", "WEEKS", "DAY", "DAYS", "HOUR", "HOURS",
    "MINUTE", "MINUTES", "SECOND", "SECONDS", "MILLISECOND", "MILLISECONDS", "MICROSECOND", "MICROSECONDS",
    "NANOSECOND", "NANOSECONDS",
)  # fmt: skip
_BEFORE_VALUES = (
    "AND", "OR", "NOT", "IS", "IN", "LIKE", "RLIKE", "ILIKE", "BETWEEN", "DIV", "CASE", "WHEN", "THEN", "ELSE",
    "INTERVAL", "TO", "DISTINCT", "COLLATE",
)  # fmt: skip


def time_travel_edits(part: ScriptPart, tokens: Sequence[Token], types_of: TypesOf) -> list[Edit]:
    """Return the replacements of relations with a time by subqueries with the columns of the source.

    Args:
        tokens: the tokens of the part.
        types_of: is called for each relation with a time.

    Raises:
        SqlError: a time depends on a column.
    """
    edits = []
    for index in range(len(tokens)):
        length = _clause_length(tokens, index)
        if not length:
            continue
        first = _start_of_name(tokens, index)
        end = _end_of_time(tokens, index + length)
        if first == index or end == index + length:
            continue
        relation = part.script[tokens[first].start : tokens[index - 1].end]
        time = part.script[tokens[index + length].start : tokens[end - 1].end]
        types = types_of(relation)
        if set(HISTORY_COLUMNS) <= types.keys() and CHANGE_TYPE not in types:
            _check_time(part, tokens, range(index + length, end), types)
            alias = "" if _has_alias(tokens, end) else f" AS {quote_name(tokens[index - 1].name)}"
            edits.append(Edit(tokens[first].start, tokens[end - 1].end, f"{_subquery(relation, time, types)}{alias}"))
    return edits


def _check_time(part: ScriptPart, tokens: Sequence[Token], places: range, types: Mapping[str, str]) -> None:
    """Raise `SqlError` if a time names a column of the history: each row would have another time."""
    names = {name.lower() for name in types}
    for place in places:
        token, before = tokens[place], tokens[place - 1]
        following = tokens[place + 1] if place + 1 in places else None
        # The names of functions, of types and of units can also be names of columns.
        is_column = token.is_name and not (
            (following is not None and (following.is_symbol("(") or following.kind is TokenKind.STRING))
            or (place > places.start and (before.is_word("AS") or before.is_symbol(":")))
            or token.is_word(*_UNITS)
        )
        if is_column and token.name.lower() in names:
            raise error_at(
                "the time after AS OF cannot depend on a column",
                part.script,
                token.start,
                received=token.name,
                remedy="write a literal, or an expression such as now() - INTERVAL '1' DAY",
            )


def _subquery(relation: str, time: str, types: Mapping[str, str]) -> str:
    columns = ", ".join(quote_name(name) for name in types if name not in HISTORY_COLUMNS)
    wanted = f"CAST({time} AS TIMESTAMP)"
    # Stores without timestamps have microseconds since 1970. Conditions on the columns themselves reach the store.
    at = wanted if types[VALID_FROM] == "timestamp" else f"unix_micros({wanted})"
    condition = f"{VALID_FROM} <= {at} AND ({VALID_TO} IS NULL OR {VALID_TO} > {at})"
    return f"(SELECT {columns} FROM {relation} WHERE {condition})"


def _clause_length(tokens: Sequence[Token], index: int) -> int:
    """Return the number of tokens of ``[FOR] {TIMESTAMP | SYSTEM_TIME} AS OF`` at an index; 0 for other tokens."""
    first = index + tokens[index].is_word("FOR")
    following = tokens[first : first + 3]
    is_clause = (
        len(following) == 3
        and following[0].is_word("TIMESTAMP", "SYSTEM_TIME")
        and following[1].is_word("AS")
        and following[2].is_word("OF")
        and not (first == index and index and tokens[index - 1].is_word("FOR"))
    )
    return first + 3 - index if is_clause else 0


def _start_of_name(tokens: Sequence[Token], end: int) -> int:
    """Return the index of the first part of the dotted name before an index; the index itself if there is none."""
    if not end or not tokens[end - 1].is_name:
        return end
    start = end - 1
    while start >= 2 and tokens[start - 1].is_symbol(".") and tokens[start - 2].is_name:
        start -= 2
    return start


def _end_of_time(tokens: Sequence[Token], start: int) -> int:
    """Return the index after the expression of the time, without an alias of the relation."""
    depth, end = 0, start
    while end < len(tokens):
        token = tokens[end]
        if depth == 0 and (token.is_symbol(")") or token.is_symbol(",") or token.is_word(*_ENDS)):
            break
        if tokens[end].is_symbol("|") and end + 1 < len(tokens) and tokens[end + 1].is_symbol(">"):
            break  # `|>` of a pipe
        depth += token.is_symbol("(") - token.is_symbol(")")
        end += 1
    if end - start > 1 and _is_alias(tokens, end - 1, start):
        return end - 1
    return end


def _is_alias(tokens: Sequence[Token], index: int, start: int) -> bool:
    """Return whether the last token of an expression is an alias: a name after a complete value."""
    token, before = tokens[index], tokens[index - 1]
    if not token.is_name or token.is_word("END"):
        return False
    if token.is_word(*_UNITS) and any(each.is_word("INTERVAL") for each in tokens[start:index]):
        return False
    # Of two names in a row one is a keyword, or the second one is an alias.
    return not before.is_word(*_BEFORE_VALUES) and (before.kind is not TokenKind.SYMBOL or before.is_symbol(")"))


def _has_alias(tokens: Sequence[Token], index: int) -> bool:
    return index < len(tokens) and (
        tokens[index].is_word("AS") or (tokens[index].is_name and not tokens[index].is_word(*_ENDS))
    )
