"""The users' functions that a followed query calls. Another body would give the state another meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from headrace.streaming_sql.language.lexer import quote_name, tokenize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = re.compile(r"[A-Z][A-Za-z ]*:")


def function_fingerprints(spark: SparkSession, sql: str) -> dict[str, str]:
    """Return a hash of the definition of each of the users' functions that a query calls, by its name.

    The definition is what ``DESCRIBE FUNCTION`` shows: for a function in SQL its parameters and its body, for one in
    Python only its class. Functions that a function calls are not followed.
    """
    tokens = tokenize(sql).tokens
    called = {token.name.lower() for token, following in pairwise(tokens) if token.is_name and following.is_symbol("(")}
    found = {}
    for (name,) in spark.sql("SHOW USER FUNCTIONS").collect():
        parts = str(name).split(".")
        if parts[-1].lower() in called:
            quoted = ".".join(map(quote_name, parts))
            lines = [str(row[0]) for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED {quoted}").collect()]
            found[parts[-1].lower()] = hashlib.sha256("\n".join(_meaning(lines)).encode()).hexdigest()
    return found


def _meaning(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a description without the time and the settings at which the function was created."""
    skipped = False
    for line in lines:
        if _PROPERTY.match(line):
            skipped = line.startswith(("Create Time:", "Configs:", "Owner:"))
        if not skipped:
            yield line
