"""A MERGE with the columns of its target and source: key expressions, the values of each clause, and its replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.derived.merge.statement import Merge, MergeAction, MergeClause
from headrace.errors import SchemaError, SqlError
from headrace.model.tables.change_columns import CHANGE_TYPE, COMMIT_VERSION
from headrace.model.tables.schema import TableSchema
from headrace.sql_text.lexer import Token, TokenKind, error_at, quote_name, string_value, tokenize
from headrace.sql_text.query_text import QueryText, Range
from headrace.sql_text.script import Name, ScriptPart

PREIMAGE = "update_preimage"
# Functions whose value differs from one evaluation to the next.
_VOLATILE = frozenset(
    ("RAND", "RANDN", "RANDOM", "RANDSTR", "UNIFORM", "UUID", "SHUFFLE", "NOW", "CURRENT_TIMESTAMP", "CURRENT_DATE",
     "CURRENT_TIME", "LOCALTIMESTAMP", "CURDATE", "UNIX_TIMESTAMP", "MONOTONICALLY_INCREASING_ID",
     "SPARK_PARTITION_ID", "INPUT_FILE_NAME")
)  # fmt: skip


@dataclass(frozen=True)
class PlannedClause:
    """A WHEN clause with the expressions of all columns that it sets, in Spark SQL.

    Attributes:
        text: the clause as the user wrote it, in one line.
        values: the expressions by column of the target. An UPDATE keeps the other columns, which an INSERT sets to
            null. The values of key columns are those of ON.
    """

    action: MergeAction
    text: str
    condition: str | None
    values: Mapping[str, str]


@dataclass(frozen=True)
class MergePlan:
    """A MERGE whose names are resolved.

    Attributes:
        target_alias, source_alias: the names before columns in expressions.
        keys: for each key column of the target, in key order, an expression over the source.
        matched, not_matched: the clauses, of which the first applies whose condition is true.
        looked_up: the columns of the target that the clauses need; the first is a key column.
        ordered: the source has commit versions, so that several changes of a key have an order.
        drops_preimages: rows with the old values of an update are left out.
        row_key: the columns of the source that tell apart the source rows of one target key. None if the source does
            not have them, or if a target key has the changes of one source row only.
        volatile: the functions in the statement whose value differs from one evaluation to the next.
        reads_target: columns of the target whose values decide the result.
        disagreement: an UPDATE and an INSERT that give different rows for the same source row; None if none do.
    """

    target_alias: str
    source_alias: str
    keys: tuple[str, ...]
    matched: tuple[PlannedClause, ...]
    not_matched: tuple[PlannedClause, ...]
    looked_up: tuple[str, ...]
    ordered: bool
    drops_preimages: bool
    row_key: tuple[str, ...]
    volatile: tuple[str, ...]
    reads_target: tuple[str, ...]
    disagreement: str | None

    def replay_obstacle(self) -> str | None:
        """Return why a repeated batch could give another result, in a store without transactions; None if it cannot.

        A repeated batch finds the rows that its first attempt has written. So each clause must give the same row
        again. Whether one source row is both deleted and inserted is known for each row only.
        """
        if self.reads_target:
            return f"it reads {', '.join(self.reads_target)} of the target, which the first attempt may have changed"
        if self.volatile:
            return f"{', '.join(self.volatile)} gives another value each time"
        return self.disagreement


def plan_merge(merge: Merge, target: TableSchema, source: Sequence[str], row_key: Sequence[str] = ()) -> MergePlan:
    """Resolve the names of a MERGE.

    Args:
        target: the columns of the target.
        source: the columns of the source, in order.
        row_key: the columns of the source that are key columns of the table whose changes it has, if they are known.

    Raises:
        SqlError: ON does not give each key column, a clause sets an unknown column or a key, or no value for a key.
        SchemaError: an INSERT has no value for a column that is NOT NULL.
    """
    names = _Names(merge, target, source)
    on = names.keys()
    clauses = [names.clause(clause, on) for clause in merge.clauses]
    matched = tuple(clause for clause in clauses if clause.action is not MergeAction.INSERT)
    not_matched = tuple(clause for clause in clauses if clause.action is MergeAction.INSERT)
    tokens = tokenize(merge.part.text).tokens
    calls = {
        token.text.upper()
        for token in tokens
        if token.kind is TokenKind.WORD and token.text.upper() in _VOLATILE and names.is_function(token)
    }
    literals = {string_value(token).lower() for token in tokens if token.kind is TokenKind.STRING}
    read = names.read_in_matched_clauses()
    attributes = {column.name for column in target.attributes}
    keeps = any(clause.action is MergeAction.UPDATE and not attributes <= clause.values.keys() for clause in matched)
    wanted = [name for name in target.names if keeps or name in read]
    first = target.primary_key[0]
    ordered, has_types = COMMIT_VERSION in source, CHANGE_TYPE in source
    compared = [part.text for part in on.values()]
    distinguishing = [name for name in row_key if not any(names.same(quote_name(name), text) for text in compared)]
    return MergePlan(
        target_alias=merge.target_alias,
        source_alias=merge.source_alias,
        keys=tuple(compared),
        matched=matched,
        not_matched=not_matched,
        looked_up=(first, *(name for name in wanted if name != first)),
        ordered=ordered,
        drops_preimages=has_types and PREIMAGE not in literals,
        row_key=tuple(distinguishing) if ordered and has_types else (),
        volatile=tuple(sorted(calls)),
        reads_target=tuple(name for name in target.names if name in read and name in attributes),
        disagreement=_disagreement(matched, not_matched, names),
    )


def _disagreement(matched: Sequence[PlannedClause], not_matched: Sequence[PlannedClause], names: _Names) -> str | None:
    for update in matched:
        for insert in not_matched:
            for column, value in update.values.items():
                other = insert.values.get(column)
                if other is None or not names.same(value, other):
                    return f"an UPDATE and an INSERT of the same source row give {column} different values"
    return None


class _Names:
    """The names of a MERGE's columns."""

    def __init__(self, merge: Merge, target: TableSchema, source: Sequence[str]) -> None:
        self._merge = merge
        self._target = target
        self._source = tuple(source)
        self._source_names = {name.lower() for name in source}

    def _error(self, problem: str, part: ScriptPart, **details: str | Sequence[str]) -> SqlError:
        return error_at(problem, part.script, part.start, **details)

    # -- ON -----------------------------------------------------------------------------------------------

    def keys(self) -> dict[str, ScriptPart]:
        """Return the source's expression for each key column, in key order."""
        alias = self._merge.target_alias
        form = " AND ".join(f"{alias}.{name} = …" for name in self._target.primary_key)
        found: dict[str, ScriptPart] = {}
        text = QueryText(self._merge.on.script, _tokens(self._merge.on))
        for conjunct in text.conjuncts(0, len(text.tokens)):
            part = text.part(*conjunct)
            sides = _equal_sides(text, *conjunct) or ()
            named = [(self._key_column(text, *side), other) for side, other in zip(sides, sides[::-1], strict=True)]
            keys = [(column, other) for column, other in named if column is not None]
            if len(keys) != 1:
                raise self._error(
                    "ON of a stream can only compare each key column of the target with an expression of the source",
                    part,
                    received=part.text,
                    valid=form,
                    remedy="put other conditions into WHEN … AND, or into WHERE of the source",
                )
            ((column, other),) = keys
            if column in found:
                raise self._error(f"ON compares key column {column!r} twice", part, valid=form)
            found[column] = text.part(*other)
        missing = [name for name in self._target.primary_key if name not in found]
        if missing:
            raise self._error(
                f"ON does not compare key column {', '.join(map(repr, missing))} of the target, "
                "so that a source row could match several rows",
                self._merge.on,
                received=self._merge.on.text,
                valid=form,
            )
        return {name: found[name] for name in self._target.primary_key}

    def _key_column(self, text: QueryText, start: int, end: int) -> str | None:
        """Return the key column that one side of an equation is; None if it is anything else."""
        start, end = text.without_brackets(start, end)
        parts, after = text.dotted(start) if text.is_name(start) else ((), start)
        if after != end:
            return None
        if len(parts) == 2 and parts[0].lower() == self._merge.target_alias.lower():
            name = self._column(parts[1])
        elif len(parts) == 1 and parts[0].lower() not in self._source_names:
            name = self._column(parts[0])
        else:
            return None
        return name if name in self._target.primary_key else None

    # -- clauses --------------------------------------------------------------------------------------------

    def clause(self, clause: MergeClause, on: Mapping[str, ScriptPart]) -> PlannedClause:
        if clause.action is MergeAction.DELETE:
            values: dict[str, str] = {}
        elif clause.values is None:
            values = self._star(clause, on)
        else:
            values = self._assigned(clause, clause.values, on)
        if clause.action is MergeAction.INSERT:
            self._check_not_null(values)
        return PlannedClause(
            clause.action,
            " ".join(clause.part.text.split()),
            None if clause.condition is None else clause.condition.text,
            {name: value for name, value in values.items() if name not in self._target.primary_key},
        )

    def _star(self, clause: MergeClause, on: Mapping[str, ScriptPart]) -> dict[str, str]:
        """Return the source's columns that have the names of the target's."""
        alias = quote_name(self._merge.source_alias)
        values = {
            name: f"{alias}.{quote_name(found)}" for name in self._target.names if (found := self._in_source(name))
        }
        for name, part in on.items():
            given = values.get(name)
            if given is None and clause.action is MergeAction.UPDATE:
                continue
            if given is None or not self.same(given, part.text):
                what = "has no column" if given is None else "has another value in column"
                raise self._error(
                    f"the source {what} {name!r}, which {clause.action} * would write as the key",
                    clause.part,
                    received=f"ON … = {part.text}",
                    remedy=f"name the columns, or give the source a column {name!r}: (SELECT {part.text} AS {name}, …)",
                )
        return values

    def _assigned(
        self, clause: MergeClause, given: Sequence[tuple[Name, ScriptPart]], on: Mapping[str, ScriptPart]
    ) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in given:
            column = self._named(name)
            if column in values:
                raise self._error(f"{clause.action} sets column {column!r} twice", name.part)
            if column in on and not self.same(value.text, on[column].text):
                raise self._error(
                    f"{clause.action} sets key column {column!r} to another value than ON",
                    value,
                    received=value.text,
                    valid=on[column].text,
                    remedy="a key cannot change: delete the row of the old key, and insert one with the new key",
                )
            values[column] = value.text
        missing = [repr(name) for name in on if name not in values]
        if clause.action is MergeAction.INSERT and missing:
            raise self._error(f"INSERT gives no value for key column {', '.join(missing)}", clause.part)
        return values

    def _named(self, name: Name) -> str:
        """Return the column of the target that a name on the left of ``=`` or in a column list is."""
        qualifier = [part.lower() for part in name.parts[:-1]]
        column = self._column(name.parts[-1])
        if qualifier not in ([], [self._merge.target_alias.lower()]) or column is None:
            raise self._error(
                "the target has no such column", name.part, received=str(name), valid=list(self._target.names)
            )
        return column

    def _check_not_null(self, values: Mapping[str, str]) -> None:
        for column in self._target.columns:
            if not column.nullable and column.name not in values:
                raise SchemaError(
                    f"INSERT gives no value for column {column.name!r}, which is NOT NULL",
                    received=list(values),
                    remedy="add the column to INSERT, or to the source of INSERT *",
                )

    # -- names ----------------------------------------------------------------------------------------------

    def _column(self, name: str) -> str | None:
        return _find(name, self._target.names)

    def _in_source(self, name: str) -> str | None:
        return _find(name, self._source)

    def read_in_matched_clauses(self) -> set[str]:
        """Return the columns of the target that conditions and values of matched clauses name."""
        found: set[str] = set()
        for clause in self._merge.clauses:
            if not clause.matched:
                continue
            parts = [value for _, value in clause.values or ()]
            for part in parts if clause.condition is None else [*parts, clause.condition]:
                found |= set(self._target_columns(_tokens(part)))
        return found

    def _target_columns(self, tokens: Sequence[Token]) -> Iterator[str]:
        alias = self._merge.target_alias.lower()
        for index, token in enumerate(tokens):
            if not token.is_name or (index and tokens[index - 1].is_symbol(".")):
                continue
            following = [*tokens[index + 1 : index + 3], None, None]
            qualifies = following[0] is not None and following[0].is_symbol(".") and token.name.lower() == alias
            name = following[1].name if qualifies and following[1] is not None else token.name
            column = self._column(name)
            # Also a name that the source has: Spark then says that it is ambiguous.
            if column is not None:
                yield column

    def is_function(self, token: Token) -> bool:
        """Return whether a word can be a call, and is not the name of a column."""
        return token.text.lower() not in self._source_names and self._column(token.text) is None

    def same(self, left: str, right: str) -> bool:
        """Return whether two expressions over the source are the same text, apart from case, quotes and qualifiers."""
        return self._normal(left) == self._normal(right)

    def _normal(self, text: str) -> list[str]:
        tokens = tokenize(text).tokens
        alias = self._merge.source_alias.lower()
        words: list[str] = []
        for index, token in enumerate(tokens):
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            qualifier = token.is_name and token.name.lower() == alias
            if qualifier and following is not None and following.is_symbol("."):
                continue
            if token.is_symbol(".") and index and tokens[index - 1].is_name and words[-1:] != ["."]:
                before = tokens[index - 1]
                if before.name.lower() == alias and (index < 2 or not tokens[index - 2].is_symbol(".")):
                    continue
            words.append(token.name.lower() if token.is_name else token.text)
        return words


def _tokens(part: ScriptPart) -> list[Token]:
    return [token for token in tokenize(part.script).tokens if part.start <= token.start < part.end]


def _find(name: str, names: Sequence[str]) -> str | None:
    """Return a column by its name; if no case is the same, in any case."""
    if name in names:
        return name
    found = [each for each in names if each.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _equal_sides(text: QueryText, start: int, end: int) -> tuple[Range, Range] | None:
    """Return the sides of an equation with ``=`` or ``==``; None for any other condition."""
    places: list[int] = []
    for index in text.top(start, end):
        if text.is_word(index, "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE"):
            return None
        if text.tokens[index].kind is TokenKind.SYMBOL and text.tokens[index].text in "=<>!":
            places.append(index)
    texts = "".join(text.tokens[index].text for index in places)
    if texts not in ("=", "==") or places[-1] - places[0] != len(places) - 1:
        return None
    left, right = (start, places[0]), (places[-1] + 1, end)
    return (left, right) if left[0] < left[1] and right[0] < right[1] else None
