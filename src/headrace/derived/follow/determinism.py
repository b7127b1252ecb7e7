"""Whether a followed query gives the same value for the same row at any time.

A row leaves the result with the values that it has when it leaves. If they are not those with which it entered, the
result is wrong for ever. Spark says which expressions are not deterministic. It takes functions of the clock and of the
session for deterministic, and replaces them, like ``CAST('now' AS TIMESTAMP)``, by constants of one execution.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from headrace.derived.follow.refusals import check_of_one_row, is_special_time, refuse_names
from headrace.derived.follow.settings import changes_answers
from headrace.errors import SqlError
from headrace.model.own_names import PREFIX
from headrace.spark.connect import is_connect
from headrace.spark.versions import function_lines
from headrace.sql_text.lexer import TokenKind, quote_name, string_value, tokenize
from headrace.sql_text.token_text import TokenText

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMEDY = "leave it out, or write a literal or a column of the table"
_NOT_DETERMINISTIC = "NON_DETERMINISTIC_LATERAL_SUBQUERIES"
_OF_THE_SESSION = re.compile(
    r"(?<![\w.`])(now|localtimestamp|session_user|current_(?:user|path|catalog|database|schema|timestamp|date|time))\("
)
_VARIABLE = re.compile(r"(?<![\w.`])variablereference\(([^)=]*)")
_END_OF_CAST = re.compile(r" as (?:date|timestamp|timestamp_ntz)\)")
_ATTRIBUTE = re.compile(r"#\d")
# The literals in a plan that cannot be the word of a time. Spark writes them without quotes.
_NUMERIC = re.compile(r"[+-]?\d[^()]*|null")
# Expressions that are no texts: casts to other types, collections, the time zone of a function, and numbers.
_NO_TEXT = re.compile(
    r"cast\(.* as (?!string\))[^()]*(\([\d,]+\)[^()]*)?\)( as [^()]*(\([\d,]+\))?)?$"
    r"|(array|map|struct|named_struct|Some)\(|[+-]?\d"
)
_NOT_IN_TEXTS = re.compile(r"[#(),]")
_PROPERTY = re.compile(r"([A-Z][A-Za-z ]*):(.*)")


def check_deterministic(spark: SparkSession, sql: str, plan: str) -> None:
    """Raise `SqlError` if a query can give other values for the same rows at another time.

    Args:
        sql: the query, over empty views instead of scans and static tables.
        plan: the text of its analysed plan.
    """
    _refuse_session_values(plan)
    for name, body in _bodies(spark, sql):
        _check_body(spark, name, body)
    if is_connect(spark):
        _check_over_connect(spark, sql, plan)
    else:
        _check_plan(spark, sql)


def _refusal(received: str, remedy: str = _REMEDY) -> SqlError:
    return SqlError(
        "a followed query cannot have a function whose value for the same row changes", received=received, remedy=remedy
    )


def _refuse_session_values(plan: str) -> None:
    """Raise `SqlError` for a value of the session in a plan.

    The text need not show it: ``user`` can be a function, and a variable looks like a column.
    """
    found = _OF_THE_SESSION.search(plan)
    if found is not None:
        raise _refusal(f"{found[1]}()", "leave it out; `user` is such a function if no column has this name")
    variable = _VARIABLE.search(plan)
    if variable is not None:
        raise SqlError(
            "a followed query cannot have a session variable: its batches run in another session, and its value can "
            "change",
            received=variable[1],
            remedy="write its value as a literal",
        )


# -- functions of users -----------------------------------------------------------------------------------------------


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
    pairs = pairwise(tokenize(sql).tokens)
    called = {token.name.lower() for token, following in pairs if token.is_name and following.is_symbol("(")}
    return [
        _function(parts[-1].lower(), function_lines(_described(spark, parts)))
        for parts in _users_functions(spark)
        if parts[-1].lower() in called
    ]


def _users_functions(spark: SparkSession) -> list[tuple[str, ...]]:
    return [tuple(str(name).split(".")) for (name,) in spark.sql("SHOW USER FUNCTIONS").collect()]


def _described(spark: SparkSession, name: Iterable[str]) -> list[str]:
    """Return what Spark shows of a function, in lines."""
    described = spark.sql(f"DESCRIBE FUNCTION EXTENDED {'.'.join(map(quote_name, name))}")
    return [str(row[0]) for row in described.collect()]


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


def _bodies(spark: SparkSession, sql: str) -> Iterator[tuple[str, str]]:
    """Yield the users' functions in SQL that a query calls, also through other functions, with their bodies."""
    users = {parts[-1].lower(): parts for parts in _users_functions(spark)}
    seen: set[tuple[str, ...]] = set()
    waiting = [sql]
    while waiting:
        for called in _called(waiting.pop()):
            name = users.get(called[0].lower(), called) if len(called) == 1 else called
            body = _body(spark, name) if name not in seen and (len(name) > 1 or name[0].lower() in users) else None
            seen.add(name)
            if body is not None:
                yield ".".join(name), body
                waiting.append(body)


def _called(sql: str) -> set[tuple[str, ...]]:
    """Return the names before opening brackets."""
    return {name for name, is_called in _names(TokenText(sql)) if is_called}


def _names(tokens: TokenText) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Yield the dotted names of a text, and whether a bracket follows."""
    for index in range(len(tokens.tokens)):
        if tokens.is_name(index) and not tokens.is_symbol(index - 1, "."):
            name, end = tokens.dotted(index)
            yield name, tokens.is_symbol(end, "(")


def _body(spark: SparkSession, name: tuple[str, ...]) -> str | None:
    """Return the body of a function in SQL; None for another function or none."""
    from pyspark.errors import AnalysisException

    try:
        lines = _described(spark, name)
    except AnalysisException:
        return None
    _, found, body = "\n".join(lines).partition("\nBody:")
    return body.strip() if found else None


def _check_body(spark: SparkSession, name: str, body: str) -> None:
    """Raise `SqlError` for the body of a function that reads tables or variables, or has what a query cannot have."""
    tokens = TokenText(body)
    if any(token.is_word("SELECT", "TABLE") for token in tokens.tokens):
        raise _refusal(f"{name}, which reads tables: {body}", "join the table instead")
    try:
        refuse_names(tokens)
        check_of_one_row(tokens)
    except SqlError as error:
        raise _refusal(f"{name}, whose body has {body}: {error.problem}", "leave the function out") from None
    for parts in {parts for parts, is_called in _names(tokens) if not is_called}:
        if _is_variable(spark, ".".join(map(quote_name, parts))):
            raise _refusal(f"{name}, whose body reads the session variable {parts[-1]}: {body}", "write its value")


def _is_variable(spark: SparkSession, name: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        _ = spark.sql(f"SELECT {name}").schema
    except AnalysisException:
        return False
    return True


# -- the plan in the JVM ----------------------------------------------------------------------------------------------


def _check_plan(spark: SparkSession, sql: str) -> None:
    """Raise `SqlError` if Spark's analysed plan is not deterministic, or reads the clock or the session.

    The optimizer's own rules show what it replaces by constants. A rule returns the plan itself if it changes nothing.
    """
    catalyst: Any = spark.sparkContext._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    frame: Any = spark.sql(sql)
    plan = catalyst.optimizer.ReplaceExpressions.apply(frame._jdf.queryExecution().analyzed())
    if not plan.deterministic():
        raise _refusal(_first(plan, lambda expression: not expression.deterministic()))
    current = catalyst.trees.TreePattern.CURRENT_LIKE()
    if plan.containsPattern(current):
        raise _refusal(_first(plan, lambda expression: expression.containsPattern(current)))
    special = catalyst.optimizer.SpecialDatetimeValues.apply(plan)
    if not special.fastEquals(plan):
        changed = zip(_expressions(plan), _expressions(special), strict=True)
        found = next((before for before, after in changed if not before.fastEquals(after)), None)
        shown = "" if found is None else f" in {found.toString()}"
        raise _refusal(f"a text that Spark converts to the current time{shown}")


def _expressions(plan: Any) -> Iterator[Any]:
    yield from _all(plan.expressions())
    for child in _all(plan.children()):
        yield from _expressions(child)


def _all(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def _first(plan: Any, wanted: Callable[[Any], bool]) -> str:
    """Return the first expression of a plan with a property."""
    return next((str(each.toString()) for each in _expressions(plan) if wanted(each)), "a part of the query")


# -- Spark Connect ----------------------------------------------------------------------------------------------------


def _check_over_connect(spark: SparkSession, sql: str, plan: str) -> None:
    """Raise `SqlError` if a query can give other values at another time, as far as a client of Spark Connect can see.

    Spark refuses a subquery that is not deterministic after LATERAL. Of constants that become times, the analysed plan
    shows those with an explicit or implicit cast, but not those inside of some functions. So a text that is the word of
    a time is refused wherever it is, and so is a computed constant as the argument of a function.
    """
    from pyspark.errors import AnalysisException

    try:
        _ = spark.sql(f"SELECT 1 FROM VALUES (1), (2) AS {PREFIX}t({PREFIX}c), LATERAL ({sql})").schema
    except AnalysisException as error:
        if not str(error.getCondition()).endswith(_NOT_DETERMINISTIC):
            raise
        raise _refusal("an expression that Spark calls non-deterministic") from None
    for token in tokenize(sql).tokens:
        if token.kind is TokenKind.STRING:
            if is_special_time(token):
                raise _refusal(f"{token.text}, which Spark can convert to the current time", "write it in another way")
            # A text must not look like the id of a column, or like a call.
            plan = plan.replace(string_value(token), _NOT_IN_TEXTS.sub("", string_value(token)))
    for match in _END_OF_CAST.finditer(plan):
        inner = _inside(plan, match.start())
        if inner is not None and not _ATTRIBUTE.search(inner) and not _NUMERIC.fullmatch(inner):
            raise _refusal(f"the time of a computed text: {inner}", "write it as one literal")
    computed = next(_computed_constants(plan), None)
    if computed is not None:
        raise _refusal(
            f"{computed}, a computed constant in a function that can convert it to the current time",
            "write it as one literal",
        )


def _computed_constants(plan: str) -> Iterator[str]:
    """Yield the arguments of calls in a plan that are calls, can be texts, and have no column."""
    # For each open bracket: where its current argument begins, and whether it belongs to a call.
    opened: list[tuple[int, bool]] = []
    for place, character in enumerate(plan):
        if character == "\n":
            opened.clear()
        elif character == "(":
            opened.append((place + 1, plan[place - 1 : place].isalnum() or plan[place - 1 : place] == "_"))
        elif character in ",)" and opened:
            start, called = opened.pop()
            argument = plan[start:place].strip()
            if called and "(" in argument and not _ATTRIBUTE.search(argument) and not _NO_TEXT.match(argument):
                yield argument
            if character == ",":
                opened.append((place + 1, called))


def _inside(plan: str, end: int) -> str | None:
    """Return the operand of the cast whose type begins at a place of a plan; None if it is not a cast."""
    depth = 0
    for place in range(end - 1, -1, -1):
        depth += (plan[place] == ")") - (plan[place] == "(")
        if depth < 0:
            return plan[place + 1 : end] if plan[:place].endswith("cast") else None
        if plan[place] == "\n":
            return None
    return None
