"""Constructs that a followed query cannot have anywhere, by name and with a remedy."""

from __future__ import annotations

import re

from headrace.derived.aggregate_calls import GENERATORS, OTHER_AGGREGATES
from headrace.errors import SqlError
from headrace.model.own_names import PREFIX, is_own
from headrace.sql_text.expressions import ends_operand
from headrace.sql_text.lexer import Token, TokenKind, string_value
from headrace.sql_text.token_text import TokenText

CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_DETERMINISTIC = _words(
    """rand random randn randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id input_file_name
    input_file_block_start input_file_block_length reflect java_method try_reflect aes_encrypt"""
)
_OF_THE_CLOCK = _words("current_timestamp current_date current_time now curdate curtime localtimestamp sysdate getdate")
_OF_THE_SESSION = _words(
    """current_user session_user current_catalog current_database current_schema current_timezone current_path
    version"""
)
# Without arguments these read the clock.
_CLOCK_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp"})
# Without parentheses these are functions too, unless a column has the name.
_WITHOUT_PARENTHESES = _words(
    """current_timestamp current_date current_time localtimestamp current_user session_user current_catalog
    current_database current_schema current_path grouping__id"""
)
_WINDOW_FUNCTIONS = _words("row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value")
# Spark also skips control characters before the word, and permits a time zone after it.
_SPECIAL_TIME = re.compile(r"[\x00-\x20\x7f-\x9f]*(now|today|tomorrow|yesterday|epoch)", re.IGNORECASE)
AGGREGATES = "count, sum, avg, min, max and count(DISTINCT …)"
IN_A_BATCH = "query the target table for that, or compute it in a batch"


def refuse_names(text: TokenText, *, signed: bool = True) -> None:
    """Raise `SqlError` for a function or column that a followed query cannot have in any place.

    Args:
        signed: the query runs over signed rows of changes, so that it can have no function of several rows either.
    """
    for index, token in enumerate(text.tokens):
        if not token.is_name:
            continue
        name = token.name.lower()
        if is_own(name):
            raise text.error(
                f"the name {token.name} begins with {PREFIX}, as headrace's own names do",
                index,
                remedy="choose another name",
            )
        if name in CHANGE_COLUMNS:
            raise text.error(
                f"current rows have no column {token.name}: it belongs to changes",
                index,
                remedy="leave it out, or read the scan with readAs = 'changes'",
            )
        called = text.is_call(index)
        if called:
            _refuse_call(text, index, name)
            if signed:
                _refuse_call_over_rows(text, index, name)
        elif name in _WITHOUT_PARENTHESES and token.kind is TokenKind.WORD and not text.is_symbol(index - 1, "."):
            raise _not_deterministic(text, index, name)
        following = text.token(index + 1)
        if (
            token.is_word("DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ")
            and following is not None
            and following.kind is TokenKind.STRING
            and is_special_time(following)
        ):
            raise _not_deterministic(text, index, f"{token.text} {following.text}")


def is_special_time(token: Token) -> bool:
    """Return whether a string is one of the texts that Spark converts to the time of the conversion.

    ``epoch`` is among them: its value never changes, but a literal says the same.
    """
    try:
        return _SPECIAL_TIME.match(string_value(token)) is not None
    except ValueError:
        return True


def _refuse_call(text: TokenText, index: int, name: str) -> None:
    closing = text.closing[index + 1]
    if name in _NOT_DETERMINISTIC or name in _OF_THE_CLOCK or name in _OF_THE_SESSION:
        raise _not_deterministic(text, index, f"{name}()")
    if name in _CLOCK_WITHOUT_ARGUMENTS and closing == index + 2:
        raise _not_deterministic(text, index, f"{name}()")
    if name == "identifier":
        raise text.error("a followed query cannot have IDENTIFIER(…)", index, remedy="write the name itself")


def _refuse_call_over_rows(text: TokenText, index: int, name: str) -> None:
    closing = text.closing[index + 1]
    if text.is_word(closing + 1, "OVER"):
        raise text.error(
            "a followed query cannot have a window function (OVER)",
            index,
            remedy="GROUP BY the columns of PARTITION BY, or compute it over the target table",
        )
    if text.is_word(closing + 1, "WITHIN") or name in OTHER_AGGREGATES:
        raise text.error(
            f"a followed query cannot have the aggregate {name}",
            index,
            remedy=f"use {AGGREGATES}; or {IN_A_BATCH}",
        )
    if name in _WINDOW_FUNCTIONS:
        raise text.error(f"a followed query cannot have the window function {name}", index, remedy=IN_A_BATCH)
    if name in GENERATORS:
        raise text.error(
            f"a followed query cannot have {name}, which makes several rows of one", index, remedy=IN_A_BATCH
        )
    if name == "session_window":
        raise text.error(
            "a followed query cannot have session_window: a deleted row can split a session",
            index,
            remedy="use window(column, length), or TUMBLING and HOPPING",
        )
    if name == "window_time":
        raise text.error(
            "a followed query cannot have window_time", index, remedy="write window.end - INTERVAL 1 MICROSECOND"
        )
    if name in ("grouping", "rollup", "cube"):
        raise text.error(f"a followed query cannot have {name}", index, remedy="one stream for each grouping")


def _not_deterministic(text: TokenText, index: int, name: str) -> SqlError:
    return text.error(
        f"a followed query cannot have {name}: its value for the same row changes",
        index,
        remedy="leave it out, or write a literal or a column of the table",
    )


_AFTER_FROM = {
    ("ORDER", "BY"): ("ORDER BY", "leave it out: a table has no order"),
    ("SORT", "BY"): ("SORT BY", "leave it out: a table has no order"),
    ("CLUSTER", "BY"): ("CLUSTER BY", "leave it out"),
    ("DISTRIBUTE", "BY"): ("DISTRIBUTE BY", "leave it out"),
    ("LATERAL", "VIEW"): ("LATERAL VIEW", IN_A_BATCH),
}
_ONE_WORD = {
    "LIMIT": "leave it out; a limit of the rows of a batch is an option of the scan",
    "OFFSET": "leave it out",
    "QUALIFY": "query the target table for that",
}
# Spark also accepts a single | as a pipe.
_PIPED = (
    "SELECT",
    "EXTEND",
    "SET",
    "DROP",
    "AS",
    "WHERE",
    "AGGREGATE",
    "JOIN",
    *_ONE_WORD,
    *(a for a, _ in _AFTER_FROM),
)


def refuse_clauses(text: TokenText, start: int, end: int) -> None:
    """Raise `SqlError` for a clause of a SELECT, in a range outside of brackets, that a followed query cannot have."""
    for index in text.top(start, end):
        token, following = text.tokens[index], text.token(index + 1)
        if text.is_pair(index, "|", ">") or (
            text.is_symbol(index, "|") and text.is_word(index + 1, *_PIPED) and not text.is_pair(index - 1, "|", "|")
        ):
            raise _clause(text, index, f"the pipe {token.text}", "write it as one SELECT")
        if token.kind is not TokenKind.WORD or text.is_symbol(index - 1, "."):
            continue
        word = token.text.upper()
        two = _AFTER_FROM.get((word, following.text.upper() if following is not None else ""))
        if two is not None:
            raise _clause(text, index, *two)
        begins = following is not None and (following.kind is not TokenKind.SYMBOL or following.is_symbol("("))
        if word in _ONE_WORD and begins and (ends_operand(text, index - 1) or index == start):
            raise _clause(text, index, word, _ONE_WORD[word])
        if text.begins_windows(index):
            raise _clause(text, index, "the clause WINDOW", IN_A_BATCH)


def _clause(text: TokenText, index: int, name: str, remedy: str) -> SqlError:
    return text.error(f"a followed query cannot have {name}", index, remedy=remedy)
