"""Completion at the prompt of ``headrace sql``: the words of statements, and the names of the workspace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.cli.prompt_commands import COMMANDS
from headrace.errors import SqlError
from headrace.sql_text.lexer import quote_name, tokenize

WORDS = (
    *("AND", "AS", "BY", "CASE", "CONSUMER", "CREATE", "DESCRIBE", "DISTINCT", "DROP", "ELSE", "END", "EXPLAIN"),
    *("FROM", "GROUP", "HAVING", "IF EXISTS", "IF NOT EXISTS", "IN", "INNER", "INSERT INTO", "IS", "JOIN", "LEFT"),
    *("LIKE", "LIMIT", "MERGE INTO", "MIRROR", "NOT", "NULL", "ON", "OPTIONS", "OR", "ORDER", "QUEUE", "REGISTER"),
    *("SCAN", "SELECT", "SET", "SHOW CONSUMERS", "SHOW PRODUCERS", "SHOW QUEUES", "SHOW SCANS", "SHOW STREAMS"),
    *("SHOW TABLES", "SHOW TUNNELS", "START STREAM", "STOP STREAM", "STREAM", "TABLE", "THEN", "TUNNEL", "UNION"),
    *("UNREGISTER", "UPDATE", "USING", "VALUES", "WHEN", "WHERE", "WITH"),
)
_BEFORE_TABLES = ("FROM", "JOIN", "INTO", "TABLE", "DESC")
_NAME = re.compile(r"[\w$.]*")
_COMMAND = re.compile(r"\s*(\\\w*)\Z")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class KnownNames(Protocol):
    """The names that completion offers."""

    def tables(self) -> list[str]: ...

    def scans(self) -> list[str]: ...

    def streams(self) -> list[str]: ...

    def column_names(self, name: str) -> list[str]: ...


def completions(text: str, names: KnownNames) -> tuple[int, list[str]]:
    """Return the words that can stand at the end of a text.

    Args:
        text: the text before the cursor.

    Returns:
        The length of the begun word that they replace, and the words in alphabetical order.
    """
    command = _COMMAND.match(text)
    if command is not None:
        return len(command[1]), _beginning_with(command[1], (word for word in COMMANDS if word.startswith("\\")))
    # From the end: a search for a name at the end would take seconds for a long word before it.
    found = _NAME.match(text[::-1])
    begun = found[0][::-1] if found is not None else ""
    try:
        tokens = tokenize(text[: len(text) - len(begun)]).tokens
    except SqlError:
        # The cursor is in a string or in a comment.
        return 0, []
    last = tokens[-1] if tokens else None
    if last is not None and last.is_word("STREAM"):
        return len(begun), _beginning_with(begun, _quoted(names.streams()))
    relations = [*names.tables(), *names.scans()]
    if last is not None and last.is_word(*_BEFORE_TABLES):
        return len(begun), _beginning_with(begun, _quoted(relations))
    used = _named_in(text, relations)
    table, dot, column = begun.rpartition(".")
    if dot and table.lower() in map(str.lower, relations):
        return len(column), _beginning_with(column, _quoted(names.column_names(table)))
    columns = {column for relation in used for column in names.column_names(relation)}
    words = [word.lower() if begun.islower() else word for word in WORDS]
    commands = [word for word in COMMANDS if not tokens and not word.startswith("\\")]
    return len(begun), _beginning_with(begun, {*words, *commands, *_quoted(columns), *_quoted(relations)})


def _named_in(text: str, relations: Sequence[str]) -> list[str]:
    words = {word.lower() for word in re.findall(r"[\w.]+", text)}
    return [relation for relation in relations if relation.lower() in words]


def _quoted(names: Iterable[str]) -> list[str]:
    return [name if _PLAIN_NAME.fullmatch(name) else quote_name(name) for name in names]


def _beginning_with(begun: str, words: Iterable[str]) -> list[str]:
    begin = begun.lower()
    return sorted((word for word in words if word.lstrip("`").lower().startswith(begin)), key=str.lower)
