"""``t TIMESTAMP AS OF time`` over the history of a mirror: the rows that the source had at that time.

The syntax is Spark's. For tables of other formats, the clause stays for Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.following.history import HISTORY_COLUMNS, VALID_FROM, VALID_TO
from headrace.streaming_sql.language.edits import Edit
from headrace.streaming_sql.language.lexer import Token, TokenKind, quote_name
from headrace.streaming_sql.language.statements import ScriptPart
from headrace.tables.change_columns import CHANGE_TYPE

TypesOf = Callable[[str], Mapping[str, str]]
"""Returns the columns of a relation, given as SQL text, with their types in Spark SQL; empty if they are unknown."""

_ENDS = (
    "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "OFFSET", "SORT", "CLUSTER", "DISTRIBUTE", "WINDOW", "QUALIFY",
    "UNION", "INTERSECT", "EXCEPT", "MINUS", "JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "SEMI", "ANTI",
    "NATURAL", "ON", "USING", "AS", "TABLESAMPLE", "LATERAL", "PIVOT", "UNPIVOT", "WATERMARK", "FROM", "WITH",
)  # fmt: skip


def time_travel_edits(part: ScriptPart, tokens: Sequence[Token], types_of: TypesOf) -> list[Edit]:
    """Return the replacements of relations with a time by subqueries with the columns of the source.

    Args:
        tokens: the tokens of the part.
        types_of: is called for each relation with a time.
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
            alias = "" if _has_alias(tokens, end) else f" AS {quote_name(tokens[index - 1].name)}"
            edits.append(Edit(tokens[first].start, tokens[end - 1].end, f"{_subquery(relation, time, types)}{alias}"))
    return edits


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
        depth += token.is_symbol("(") - token.is_symbol(")")
        end += 1
    if end - start > 1 and _is_alias(tokens, end - 1, start):
        return end - 1
    return end


def _is_alias(tokens: Sequence[Token], index: int, start: int) -> bool:
    """Return whether the last token of an expression is an alias: a name after a complete value."""
    before = tokens[index - 1]
    is_unit = index - 2 >= start and tokens[index - 2].is_word("INTERVAL")
    return tokens[index].is_name and not is_unit and (before.kind is TokenKind.STRING or before.is_symbol(")"))


def _has_alias(tokens: Sequence[Token], index: int) -> bool:
    return index < len(tokens) and (
        tokens[index].is_word("AS") or (tokens[index].is_name and not tokens[index].is_word(*_ENDS))
    )
