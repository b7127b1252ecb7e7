"""The parser of the older dialect: ``SET`` statements that name and configure the next streaming query."""

from __future__ import annotations

from headrace.sql_text.cursor import Cursor
from headrace.sql_text.lexer import Token, TokenKind
from headrace.sql_text.script import Statement
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.forms import spark

_QUERY_SETTINGS = "spark.sql.streaming.query."
_CHECKPOINT_SETTING = "spark.sql.streaming.checkpointlocation."


def set_statement(cursor: Cursor) -> Statement:
    """Read ``key=value`` after ``SET``. The value is the rest of the statement. Other keys are settings of Spark."""
    name = cursor.peek()
    key, _ = cursor.key()
    lower = key.lower()
    named = lower == "streaming.query.name"
    if name is None or not (named or lower.startswith((_QUERY_SETTINGS, _CHECKPOINT_SETTING))):
        return spark(cursor)
    cursor.take_key()
    cursor.need_symbol("=")
    if cursor.peek() is None:
        raise cursor.expected(f"the value of {key}")
    first, *others = cursor.left()
    text = cursor.rest().text
    value = text if others or first.kind is not TokenKind.STRING else cursor.string(first)
    if named:
        return st.SetQueryName(part=cursor.whole, name=value)
    query, option = _setting(cursor, key, name)
    return st.SetQueryOption(part=cursor.whole, query=query, option=option, value=value)


def _setting(cursor: Cursor, key: str, token: Token) -> tuple[str | None, str]:
    """Return the query (None for all queries) and the option of a key."""
    if key.lower().startswith(_CHECKPOINT_SETTING):
        return key[len(_CHECKPOINT_SETTING) :], "checkpointLocation"
    words = key[len(_QUERY_SETTINGS) :].split(".")
    match [word.lower() for word in words]:
        case ["options", _, _, *_]:
            return words[1], ".".join(words[2:])
        case ["outputmode", _]:
            return words[1], "outputMode"
        case ["trigger", "intervalms", _]:
            return words[2], "triggerIntervalMs"
        case ["trigger", _]:
            return words[1], "triggerType"
        case ["checkpointlocation", _]:
            return words[1], "checkpointLocation"
        case ["timeout", "ms"]:
            return None, "timeoutMs"
    raise cursor.error(
        "unknown setting of a streaming query",
        token,
        received=key,
        valid="options.<query>.<option>, outputMode.<query>, trigger.<query>, trigger.intervalMs.<query>, "
        "checkpointLocation.<query> or timeout.ms after spark.sql.streaming.query",
    )
