"""The queries of Spark that run a MERGE over the rows of a batch.

1. `keyed` gives each source row its target key, and keeps one row of each key.
2. Python adds the row of the target (`headrace.derived.merge.batches`).
3. `decided` evaluates the clauses: an action, and the values of the target's columns.

Spark resolves the names in the user's expressions: the source and the target are relations with the user's aliases. In
clauses for rows that are not matched, only the source is a relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.derived.merge.plan import PREIMAGE, MergePlan, PlannedClause
from headrace.derived.merge.statement import MergeAction
from headrace.model.tables.change_columns import CHANGE_TYPE, COMMIT_VERSION
from headrace.sql_text.lexer import quote_name

NOTHING, PUT, DELETE, CONFLICT = 0, 1, 2, 3
"""The actions of `MergeQueries.decided`. With `CONFLICT`, a row is deleted if it exists and inserted if it does not."""


@dataclass(frozen=True)
class MergeQueries:
    """The queries of a MERGE, as texts for given views. Small and picklable.

    Attributes:
        plan: the MERGE.
        source: the columns of the source.
        key_names: the key columns of the target, in key order.
        attributes: the other columns of the target, in order.
        repeatable: a repeated batch must give the same rows over rows that its first attempt has written. Then the
            conditions of all clauses are evaluated for each row, to find conflicts.
    """

    plan: MergePlan
    source: tuple[str, ...]
    key_names: tuple[str, ...]
    attributes: tuple[str, ...]
    repeatable: bool = False

    def hidden(self, name: str) -> str:
        """Return the name of an own column, which no column of the source has."""
        prefix = "__merge_"
        while any(column.lower().startswith(prefix) for column in self.source):
            prefix = f"_{prefix}"
        return prefix + name

    @property
    def key_columns(self) -> list[str]:
        """The columns with the target key in all queries."""
        return [self.hidden(f"key{index}") for index in range(len(self.key_names))]

    @property
    def looked_up_columns(self) -> list[str]:
        """The columns that step 2 adds for `MergePlan.looked_up`."""
        return [self.hidden(f"target{index}") for index in range(len(self.plan.looked_up))]

    @property
    def repeats(self) -> str:
        """The column with the number of rows of the same key, if the source has no order."""
        return self.hidden("repeats")

    @property
    def matched(self) -> str:
        """The column that says whether the target's row exists."""
        return self.hidden("matched")

    @property
    def action(self) -> str:
        return self.hidden("action")

    @property
    def written(self) -> tuple[str, ...]:
        """The attributes that a clause sets or keeps. The others are null in all rows that are put."""
        clauses = [*self.plan.matched, *self.plan.not_matched]
        named = {name for clause in clauses for name in clause.values}
        return tuple(name for name in self.attributes if name in named or name in self.plan.looked_up)

    # -- step 1 -------------------------------------------------------------------------------------------

    def keys(self, view: str) -> str:
        """Return the query of the source's rows with their keys."""
        keys = [f"({key}) AS {quote_name(name)}" for key, name in zip(self.plan.keys, self.key_columns, strict=True)]
        return f"SELECT {self._s}.*, {', '.join(keys)} FROM {view} AS {self._s}"

    def keyed(self, view: str) -> str:
        """Return the query of the row of each key that counts.

        Without `MergePlan.row_key` this is the last one. With it, several source rows can have the key, one after the
        other. The last row of each of them says whether it has the key after the batch. Of those that have it, the
        latest one counts; if none has it, the latest one that gave it up.

        The columns are those of the source, the key, and `repeats` without commit versions. Rows without a key match
        nothing, so all of them are kept.
        """
        plan, order = self.plan, quote_name(self.hidden("order"))
        keys = [quote_name(name) for name in self.key_columns]
        rows = f"SELECT *, monotonically_increasing_id() AS {order} FROM ({self.keys(view)})"
        if plan.drops_preimages:
            rows = f"SELECT * FROM ({rows}) WHERE NOT {quote_name(CHANGE_TYPE)} <=> '{PREIMAGE}'"
        missing = " OR ".join(f"{key} IS NULL" for key in keys)
        group = f"PARTITION BY {', '.join(keys)}, CASE WHEN {missing} THEN {order} END"
        kept = ", ".join([*map(quote_name, self.source), *keys])
        if not plan.ordered:
            return f"SELECT {kept}, count(*) OVER ({group}) AS {quote_name(self.repeats)} FROM ({rows})"
        latest = f"{quote_name(COMMIT_VERSION)} DESC, {order} DESC"
        if not plan.row_key:
            return self._first(rows, kept, f"{group} ORDER BY {latest}")
        # One shuffle by the target key serves both windows.
        rows = f"SELECT * FROM ({rows}) DISTRIBUTE BY {', '.join(keys)}"
        of_row = ", ".join(map(quote_name, plan.row_key))
        rows = self._first(rows, f"{kept}, {order}", f"{group}, {of_row} ORDER BY {latest}")
        is_old = f"coalesce({quote_name(CHANGE_TYPE)} IN ('delete', '{PREIMAGE}'), false)"
        return self._first(rows, kept, f"{group} ORDER BY {is_old}, {latest}")

    def _first(self, rows: str, columns: str, window: str) -> str:
        """Return the query of the first row of each window."""
        rank = quote_name(self.hidden("rank"))
        return (
            f"SELECT {columns} FROM (SELECT *, row_number() OVER ({window}) AS {rank} FROM ({rows})) WHERE {rank} = 1"
        )

    # -- step 3 -------------------------------------------------------------------------------------------

    def decided(self, view: str) -> str:
        """Return the query of the key columns, `written` and `action`. ``view`` has the rows of step 2."""
        insert, update = self._hidden("insert"), self._hidden("update")
        matched = f"{self._s}.{quote_name(self.matched)}"
        rows = self._chosen(view, self.plan.not_matched, insert, f"NOT {matched}")
        inserted = [
            f"{self._value(self.plan.not_matched, name, insert, f'NOT {matched}')} AS {self._hidden(f'new{index}')}"
            for index, name in enumerate(self.written)
        ]
        rows = f"SELECT {', '.join([f'{self._s}.*', *inserted])} FROM ({rows}) AS {self._s}"
        rows = self._chosen(f"({rows})", self.plan.matched, update, matched, self._target)
        deletes = [number for number, each in enumerate(self.plan.matched, 1) if each.action is MergeAction.DELETE]
        is_delete = f"{update} IN ({', '.join(map(str, deletes or [-1]))})"
        conflict = f"WHEN {insert} > 0 AND {is_delete} THEN {CONFLICT} " if self.repeatable else ""
        action = (
            f"CASE {conflict}WHEN {matched} AND {is_delete} THEN {DELETE} WHEN {matched} AND {update} > 0 THEN {PUT} "
            f"WHEN NOT {matched} AND {insert} > 0 THEN {PUT} ELSE {NOTHING} END AS {quote_name(self.action)}"
        )
        keys = [
            f"{self._s}.{quote_name(hidden)} AS {quote_name(name)}"
            for hidden, name in zip(self.key_columns, self.key_names, strict=True)
        ]
        values = []
        for index, name in enumerate(self.written):
            new = f"{self._s}.{self._hidden(f'new{index}')}"
            updated = self._value(self.plan.matched, name, update, matched, kept=True, otherwise=new)
            values.append(f"{updated} AS {quote_name(name)}")
        return f"SELECT {', '.join([*keys, *values, action])} FROM ({rows}) AS {self._s}{self._target}"

    def expressions(self, clause: PlannedClause, view: str) -> str:
        """Return the query of a clause's values, in order, for the types that they have."""
        values = [f"({value}) AS {quote_name(name)}" for name, value in clause.values.items()]
        target = "" if clause.action is MergeAction.INSERT else self._target
        return f"SELECT {', '.join(values)} FROM {view} AS {self._s}{target}"

    def _chosen(self, view: str, clauses: Sequence[PlannedClause], name: str, applies: str, target: str = "") -> str:
        """Return the query that adds a column with the number of the clause that applies to a row, from 1, or 0."""
        cases = [
            f"WHEN {'true' if clause.condition is None else f'({clause.condition})'} THEN {number}"
            for number, clause in enumerate(clauses, 1)
        ]
        guard = "" if self.repeatable else f"WHEN NOT ({applies}) THEN 0 "
        chosen = f"CASE {guard}{' '.join(cases)} ELSE 0 END" if cases else "0"
        return f"SELECT {self._s}.*, {chosen} AS {name} FROM {view} AS {self._s}{target}"

    def _value(
        self,
        clauses: Sequence[PlannedClause],
        column: str,
        chosen: str,
        applies: str,
        *,
        kept: bool = False,
        otherwise: str = "NULL",
    ) -> str:
        """Return the expression of a column's value, of the clause that applies."""
        cases: list[str] = []
        for number, clause in enumerate(clauses, 1):
            if clause.action is MergeAction.DELETE:
                continue
            value = clause.values.get(column)
            if value is None and kept:
                value = f"{quote_name(self.plan.target_alias)}.{quote_name(column)}"
            if value is not None:
                cases.append(f"WHEN {applies} AND {chosen} = {number} THEN ({value})")
        return f"CASE {' '.join(cases)} ELSE {otherwise} END" if cases else otherwise

    @property
    def _s(self) -> str:
        return quote_name(self.plan.source_alias)

    @property
    def _target(self) -> str:
        """The target's row as a relation. Spark makes a projection of it, and no join."""
        found = dict(zip(self.plan.looked_up, self.looked_up_columns, strict=True))
        if self.repeatable:
            # The key of a row that the first attempt inserts, for the conditions that a repeated batch evaluates.
            keys = dict(zip(self.key_names, self.key_columns, strict=True))
            found |= {name: key for name, key in keys.items() if name in found}
        columns = [f"{self._s}.{quote_name(hidden)} AS {quote_name(name)}" for name, hidden in found.items()]
        return f", LATERAL (SELECT {', '.join(columns)}) AS {quote_name(self.plan.target_alias)}"

    def _hidden(self, name: str) -> str:
        return quote_name(self.hidden(name))
