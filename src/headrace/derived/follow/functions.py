"""The users' functions that a followed query calls. Another body would give the state another meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.derived.follow.settings import changes_answers
from headrace.sql_text.lexer import quote_name, tokenize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = re.compile(r"([A-Z][A-Za-z ]*):(.*)")


@dataclass(frozen=True)
class CalledFunction:
    """A function of the users that a query calls.

    Attributes:
        fingerprint: a hash of what ``DESCRIBE FUNCTION`` shows: for a function in SQL its parameters and its body, for
            one in Python only its class. Functions that a function calls are not followed.
        settings: the settings at its creation that can change its result, which Spark keeps with it.
    """

    name: str
    fingerprint: str
    settings: Mapping[str, str]


def called_functions(spark: SparkSession, sql: str) -> list[CalledFunction]:
    """Return the users' functions that a query calls."""
    tokens = tokenize(sql).tokens
    called = {token.name.lower() for token, following in pairwise(tokens) if token.is_name and following.is_symbol("(")}
    found = []
    for (name,) in spark.sql("SHOW USER FUNCTIONS").collect():
        parts = str(name).split(".")
        if parts[-1].lower() in called:
            quoted = ".".join(map(quote_name, parts))
            lines = [str(row[0]) for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED {quoted}").collect()]
            found.append(_function(parts[-1].lower(), lines))
    return found


def _function(name: str, lines: Iterable[str]) -> CalledFunction:
    meaning, settings = [], {}
    shown = ""
    for line in lines:
        match = _PROPERTY.match(line)
        shown = match[1] if match else shown
        if shown == "Configs":
            setting, _, value = (match[2] if match else line).strip().partition("=")
            if changes_answers(setting):
                settings[f"function {name}: {setting}"] = value
        elif shown not in ("Create Time", "Owner"):
            meaning.append(line)
    return CalledFunction(name, hashlib.sha256("\n".join(meaning).encode()).hexdigest(), settings)
