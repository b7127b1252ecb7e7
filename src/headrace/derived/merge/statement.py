"""``MERGE INTO`` of a stream: the statement, and its parser.

    MERGE INTO target [[AS] alias] USING { scan | (query) } [[AS] alias] ON condition
      { WHEN MATCHED [AND condition] THEN { DELETE | UPDATE SET column = value, … | UPDATE SET * }
      | WHEN NOT MATCHED [BY TARGET] [AND condition] THEN { INSERT (column, …) VALUES (value, …) | INSERT * } } …

Conditions and values are Spark SQL. Spark parses them; here only their ends are found.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import SqlError
from headrace.sql_text.cursor import Cursor
from headrace.sql_text.expressions import ends_case
from headrace.sql_text.lexer import Token
from headrace.sql_text.script import Name, ScriptPart, StreamBody
from headrace.sql_text.token_text import TokenText

_OPENING, _CLOSING = ("(", "["), (")", "]")
_FORM = "MERGE INTO target USING scan ON … WHEN [NOT] MATCHED … THEN …"


class MergeAction(enum.StrEnum):
    """What a WHEN clause does."""

    DELETE = "DELETE"
    UPDATE = "UPDATE"
    INSERT = "INSERT"


@dataclass(frozen=True, kw_only=True)
class MergeClause:
    """A WHEN clause.

    Attributes:
        part: the whole clause.
        condition: the condition after AND, if there is one.
        values: the expressions of columns, in the order of the text; None for ``*`` and for DELETE.
    """

    part: ScriptPart
    action: MergeAction
    condition: ScriptPart | None
    values: tuple[tuple[Name, ScriptPart], ...] | None

    @property
    def matched(self) -> bool:
        """Whether the clause is for source rows whose target row exists."""
        return self.action is not MergeAction.INSERT


@dataclass(frozen=True, kw_only=True)
class Merge(StreamBody):
    """``MERGE INTO target USING source ON … WHEN …``.

    Attributes:
        target_alias: the name before the target's columns.
        source: a name, or a query in parentheses.
        source_alias: the name before the source's columns.
        on: the condition after ON.
        clauses: the WHEN clauses, in order.
    """

    target_alias: str
    source: ScriptPart
    source_alias: str
    on: ScriptPart
    clauses: tuple[MergeClause, ...]
    using: ScriptPart

    @property
    def reads(self) -> ScriptPart:
        return self.using

    @property
    def text(self) -> str:
        return self.part.text


def merge_body(cursor: Cursor) -> Merge:
    """Read a MERGE from its first word to the end of the statement.

    Raises:
        SqlError: the text has another form, or a construct that a stream cannot have.
    """
    start = cursor.start
    cursor.need_words("MERGE")
    _refuse(
        cursor,
        ("WITH", "SCHEMA", "EVOLUTION"),
        "a stream cannot change the columns of its target",
        "add the columns to the target, and leave out WITH SCHEMA EVOLUTION",
    )
    cursor.need_words("INTO")
    target = cursor.need_name("the table")
    target_alias = cursor.take_alias("USING") or target.parts[-1]
    using = cursor.start
    cursor.need_words("USING")
    source, source_name = _source(cursor)
    source_alias = cursor.take_alias("ON") or source_name
    if source_alias is None:
        raise cursor.expected("an alias of the query: USING (SELECT …) AS s")
    using_part = cursor.part(using, cursor.start)
    if source_alias.lower() == target_alias.lower():
        raise cursor.refused(
            "the target and the source have the same name in this statement",
            source.start,
            received=source_alias,
            remedy="give them aliases: MERGE INTO orders AS t USING … AS s",
        )
    cursor.need_words("ON")
    on = _expression(cursor, "the condition that compares the key columns", "WHEN")
    if not cursor.at_words("WHEN"):
        raise cursor.expected("WHEN MATCHED or WHEN NOT MATCHED")
    clauses: list[MergeClause] = []
    while cursor.at_words("WHEN"):
        clauses.append(_clause(cursor, clauses))
    cursor.need_end()
    whole = cursor.part(start, cursor.whole.end)
    return Merge(
        part=whole,
        target=target,
        target_alias=target_alias,
        source=source,
        source_alias=source_alias,
        on=on,
        clauses=tuple(clauses),
        using=using_part,
    )


def _source(cursor: Cursor) -> tuple[ScriptPart, str | None]:
    """Return the source, and the name that it has without an alias."""
    if not cursor.at_symbol("("):
        name = cursor.need_name("the scan, or a query in parentheses,")
        return name.part, name.parts[-1]
    start = cursor.start
    if not cursor.at_query(1):
        raise cursor.expected("the name of the scan, or (SELECT …)")
    cursor.parenthesised()
    return cursor.part(start, cursor.before.end), None


# -- clauses ------------------------------------------------------------------------------------------


def _clause(cursor: Cursor, before: Sequence[MergeClause]) -> MergeClause:
    start = cursor.start
    cursor.need_words("WHEN")
    matched = not cursor.take_words("NOT")
    cursor.need_words("MATCHED")
    if not matched and not cursor.take_words("BY", "TARGET"):
        _refuse(
            cursor,
            ("BY", "SOURCE"),
            "a stream cannot have WHEN NOT MATCHED BY SOURCE: a batch has the changed rows only, "
            "so that all other rows of the target would count as rows without a source",
            "delete the rows whose change is a delete: WHEN MATCHED AND s._change_type = 'delete' THEN DELETE",
        )
    condition = None
    if cursor.take_words("AND"):
        condition = _expression(cursor, "a condition", "THEN")
    cursor.need_words("THEN")
    for earlier in before:
        if earlier.matched == matched and earlier.condition is None:
            kind = "WHEN MATCHED" if matched else "WHEN NOT MATCHED"
            raise cursor.refused(
                f"an earlier {kind} clause has no condition, so that this one would never apply",
                start,
                remedy="put the clause without a condition last",
            )
    action, values = _matched_action(cursor) if matched else _insert(cursor)
    return MergeClause(part=cursor.part(start, cursor.before.end), action=action, condition=condition, values=values)


_Values = tuple[tuple[Name, ScriptPart], ...]


def _matched_action(cursor: Cursor) -> tuple[MergeAction, _Values | None]:
    if cursor.take_words("DELETE"):
        return MergeAction.DELETE, None
    if not cursor.take_words("UPDATE", "SET"):
        raise cursor.expected("DELETE, UPDATE SET column = value, … or UPDATE SET *")
    if cursor.take_symbol("*"):
        return MergeAction.UPDATE, None
    values: list[tuple[Name, ScriptPart]] = []
    while True:
        column = cursor.need_name("a column")
        if not cursor.take_symbol("="):
            raise cursor.expected("= and the value of the column")
        values.append((column, _value(cursor, "WHEN")))
        if not cursor.take_symbol(","):
            return MergeAction.UPDATE, tuple(values)


def _insert(cursor: Cursor) -> tuple[MergeAction, _Values | None]:
    if not cursor.take_words("INSERT"):
        raise cursor.expected("INSERT (column, …) VALUES (value, …) or INSERT *")
    if cursor.take_symbol("*"):
        return MergeAction.INSERT, None
    cursor.need_symbol("(")
    columns = [cursor.need_name("a column")]
    while cursor.take_symbol(","):
        columns.append(cursor.need_name("a column"))
    cursor.need_symbol(")")
    opening = cursor.start
    cursor.need_words("VALUES")
    cursor.need_symbol("(")
    values = [_value(cursor)]
    while cursor.take_symbol(","):
        values.append(_value(cursor))
    cursor.need_symbol(")")
    if len(columns) != len(values):
        raise cursor.refused(
            "the numbers of columns and values differ",
            opening,
            received=f"{len(columns)} columns, {len(values)} values",
        )
    return MergeAction.INSERT, tuple(zip(columns, values, strict=True))


# -- expressions --------------------------------------------------------------------------------------


def _value(cursor: Cursor, *ends: str) -> ScriptPart:
    if cursor.at_words("DEFAULT"):
        raise cursor.expected("a value: columns have no DEFAULT; a column that is left out becomes null")
    return _expression(cursor, "a value", *ends, commas=True)


def _expression(cursor: Cursor, what: str, *ends: str, commas: bool = False) -> ScriptPart:
    """Read up to one of the words, a comma or a closing parenthesis outside of parentheses and of CASE … END."""
    start, last = cursor.start, None
    text = TokenText("", cursor.left(), strict=False)
    index = depth = cases = 0
    while (token := cursor.peek()) is not None:
        if not depth and not cases and (token.is_word(*ends) or _ends_value(token, commas)):
            break
        if token.is_word("SELECT"):
            raise _unsupported(
                cursor, token, "a subquery", "join in the source: USING (SELECT … FROM scan JOIN …) AS s"
            )
        following = cursor.peek(1)
        if token.is_word("OVER") and following is not None and following.is_symbol("("):
            raise _unsupported(cursor, token, "a window function", "write an expression of one row")
        if text.is_star(index):
            # Beside the columns of the source, batches have columns that say which clause applies.
            raise _unsupported(cursor, token, "a star", "compute it in the source: USING (SELECT *, … FROM scan) AS s")
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        cases += (token.is_word("CASE") and not text.is_symbol(index - 1, ".")) - ends_case(text, index)
        last = cursor.take()
        index += 1
    if last is None:
        raise cursor.expected(what)
    return cursor.part(start, last.end)


def _ends_value(token: Token, commas: bool) -> bool:
    return token.text in _CLOSING or (commas and token.is_symbol(","))


def _unsupported(cursor: Cursor, token: Token, what: str, remedy: str) -> SqlError:
    return cursor.refused(f"MERGE cannot have {what} in ON or WHEN", token.start, remedy=remedy)


def _refuse(cursor: Cursor, words: tuple[str, ...], problem: str, remedy: str) -> None:
    if cursor.at_words(*words):
        raise cursor.refused(problem, cursor.start, valid=_FORM, remedy=remedy)
