"""What a followed query cannot have: functions and names that are refused, and what is followed in another way."""

from __future__ import annotations

import re

from headrace.derived.aggregate_calls import GENERATORS, OTHER_AGGREGATES, words
from headrace.errors import SqlError
from headrace.model.own_names import PREFIX, is_own
from headrace.model.tables.change_columns import CHANGE_COLUMNS
from headrace.sql_text.lexer import Token, TokenKind, string_value
from headrace.sql_text.token_text import TokenText


class NotSplit(SqlError):
    """A way to follow a query does not fit it, for the reason in the text.

    The next way follows the query, or refuses it by name. So users do not see the reason.
    """


_NOT_DETERMINISTIC = words(
    """rand random randn randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id input_file_name
    input_file_block_start input_file_block_length reflect java_method try_reflect aes_encrypt"""
)
_OF_THE_CLOCK = words("current_timestamp current_date current_time now curdate curtime localtimestamp sysdate getdate")
_OF_THE_SESSION = words(
    """current_user session_user current_catalog current_database current_schema current_timezone current_path
    version"""
)
# Without arguments these read the clock.
_CLOCK_WITHOUT_ARGUMENTS = frozenset({"unix_timestamp"})
# Without parentheses these are functions too, unless a column has the name.
_WITHOUT_PARENTHESES = words(
    """current_timestamp current_date current_time localtimestamp current_user session_user current_catalog
    current_database current_schema current_path grouping__id"""
)
# Functions of several rows, and functions that make several rows of one. A deleted row can split a session.
_WINDOWS = words(
    """row_number rank dense_rank percent_rank cume_dist ntile lag lead nth_value session_window window_time rollup
    cube"""
)
_OF_SEVERAL_ROWS = _WINDOWS | GENERATORS | OTHER_AGGREGATES
# Spark also skips control characters before the word, and permits a time zone after it.
_SPECIAL_TIME = re.compile(r"[\x00-\x20\x7f-\x9f]*(now|today|tomorrow|yesterday|epoch)", re.IGNORECASE)


def refuse_names(text: TokenText) -> None:
    """Raise `SqlError` for a function or column that a followed query cannot have in any place."""
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
        if name in CHANGE_COLUMNS.names:
            raise text.error(
                f"current rows have no column {token.name}: it belongs to changes",
                index,
                remedy="leave it out, or read the scan with readAs = 'changes'",
            )
        if text.is_call(index):
            _refuse_call(text, index, name)
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


def check_of_one_row(text: TokenText) -> None:
    """Raise `NotSplit` for a function of several rows that is not kept by group, or one that makes several rows."""
    for index, token in enumerate(text.tokens):
        if text.is_call(index) and (
            token.name.lower() in _OF_SEVERAL_ROWS or text.is_word(text.after(index + 1), "OVER", "WITHIN")
        ):
            raise NotSplit(f"the function {token.name}")


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


def _not_deterministic(text: TokenText, index: int, name: str) -> SqlError:
    return text.error(
        f"a followed query cannot have {name}: its value for the same row changes",
        index,
        remedy="leave it out, or write a literal or a column of the table",
    )
