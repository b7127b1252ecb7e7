"""`FollowedPlan`: a query over followed scans, split and checked, and its rules for the key of the target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.derived.follow.analysis import Origin
from headrace.derived.follow.batch_content import GroupQuery
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.split import FollowedQuery, Grouping
from headrace.derived.gathering.arrangements import Gathering
from headrace.derived.gathering.unique import determines
from headrace.derived.own_names import ALIVE, STATE, STATE_DDL, value_column
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.group_states import GroupStates
from headrace.errors import SchemaError, SqlError
from headrace.spark.versions import arrow_schema
from headrace.sql_text.lexer import quote_name, tokenize

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# In other zones the clocks go back once a year, and an hour's texts repeat.
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu)|Z|(UTC|GMT)?[+-]\d{1,2}(:?\d{2}){0,2}", re.IGNORECASE)
# The names of columns are a part of the fingerprint, which is computed from tokens.
_NOT_A_TOKEN = re.compile(r"[`'\"]|--|/[/*]")


def groups_view(types: StructType) -> StructType:
    """Return the columns of the view that the result SQL reads, for those of its groups and aggregates."""
    from pyspark.sql.types import BooleanType, DataType, StructField, StructType

    own = [StructField(ALIVE, BooleanType()), StructField(STATE, DataType.fromDDL(STATE_DDL))]
    return StructType([*types.fields, *own])


@dataclass(frozen=True)
class FollowedPlan:
    """A query over followed scans, as its batches run it.

    Attributes:
        scans: the followed scans that it reads.
        names: the names of the output columns.
        query: the query, split.
        schema: the output columns.
        rows: the columns of the rows SQL.
        group_types: the columns of the view that the result SQL reads; None for a query without aggregates.
        origins: for each branch of a query without aggregates the scan and column of which each output column is a
            copy, or None.
        time_zone: the session's time zone, on which the values of expressions can depend.
        gathering: how the rows are found over which the rows SQL is evaluated; None if it runs over signed rows.
        as_whole: the plan of the same query over gathered rows without its groups, for a target with another key, see
            `check_key`; None if there is none.
        inner: the inner queries whose groups it reads, by their numbers, inner ones first.
        unique: positions of output columns that are unique in the result of a query over gathered rows without groups;
            empty if none are certain.
    """

    scans: tuple[FollowedScan, ...]
    names: tuple[str, ...]
    query: FollowedQuery
    schema: StructType
    rows: StructType
    group_types: StructType | None
    origins: tuple[tuple[Origin | None, ...], ...]
    time_zone: str
    gathering: Gathering | None = None
    as_whole: FollowedPlan | None = None
    unique: tuple[int, ...] = ()
    inner: Mapping[int, FollowedPlan] = field(default_factory=dict)

    def renamed(self, names: Sequence[str]) -> FollowedPlan:
        """Return the plan with other names of output columns, by position."""
        whole = None if self.as_whole is None else self.as_whole.renamed(names)
        return replace(self, names=tuple(names), as_whole=whole)

    def for_key(self, table: str, primary_key: Sequence[str]) -> FollowedPlan:
        """Return the plan for a target with a primary key.

        Raises:
            SchemaError: see `check_key`.
        """
        try:
            self.check_key(table, primary_key)
        except SchemaError:
            if self.as_whole is None:
                raise
            return self.as_whole
        return self

    @property
    def output(self) -> pa.Schema:
        """The output columns."""
        import pyarrow as pa

        types = arrow_schema(self.schema)
        return pa.schema([field.with_name(name) for name, field in zip(self.names, types, strict=True)])

    @property
    def fingerprint(self) -> str:
        """A hash of the meaning of the query: texts with other spaces or comments have the same."""
        query, groups = self.query, self.query.groups
        names = (quote_name(name) if _NOT_A_TOKEN.search(name) else name for name in self.names)
        texts = [query.rows_sql, "" if groups is None else groups.result_sql, ", ".join(names)]
        words = [_words(text) for text in texts]
        if self.gathering is not None:
            definition = self.gathering.definition
            try:
                words.append(_words(definition))
            except SqlError:
                # It is no SQL: the name of a column can have a quote without an end.
                words.append(definition)
        types = "" if self.group_types is None else self.group_types.simpleString()
        kept = [] if groups is None else [f"{each.kind} {each.arguments}" for each in groups.aggregates]
        inner = [each.fingerprint for each in self.inner.values()]
        return hashlib.sha256("\n".join((*words, types, *kept, *inner)).encode()).hexdigest()

    def states(self, *, keeps_previous: bool, number: int = 0) -> GroupStates | None:
        """Return the state of the query's groups; None for a query without aggregates.

        Args:
            number: that of an inner query; 0 for the groups at the end.

        Raises:
            UnsupportedError: an aggregate cannot be kept for the types of its arguments.
        """
        import pyarrow as pa

        groups = self.query.groups
        if groups is None or self.group_types is None:
            return None
        types = arrow_schema(self.group_types)
        rows = arrow_schema(self.rows)
        aggregates = [
            Aggregate(
                each.kind,
                each.arguments,
                tuple(rows.field(name).type for name in each.arguments),
                types.field(value_column(number)).type,
                each.text,
            )
            for number, each in enumerate(groups.aggregates)
        ]
        keys = pa.schema([types.field(name) for name in groups.names])
        return GroupStates(keys, aggregates, keeps_previous=keeps_previous, inner=number)

    def group_query(
        self, *, keeps_previous: bool, number: int = 0, key: Collection[str] | None = None
    ) -> GroupQuery | None:
        """Return what batches compute for the groups of the query, see `states`; None without aggregates.

        Args:
            key: the key columns of the target, as in `check_key`; None for the groups of an inner query.
        """
        groups, types = self.query.groups, self.group_types
        states = self.states(keeps_previous=keeps_previous, number=number)
        if groups is None or types is None or states is None:
            return None
        items = zip(self.names, groups.items, strict=True)
        of_key = None if key is None else {item.group for name, item in items if name in key}
        by = tuple(name for name in groups.names if of_key is None or name in of_key)
        return GroupQuery(states, groups_view(types), groups.result_sql, groups.copied, by, by != groups.names)

    def with_determined(self, groups: Collection[str]) -> set[str]:
        """Return columns of groups with those others whose values they determine."""
        names = () if self.query.groups is None else self.query.groups.names
        model = None if self.gathering is None else self.gathering.model
        given = [place for place, name in enumerate(names) if name in groups]
        return {name for place, name in enumerate(names) if place in given or determines(model, given, place)}

    def check_key(self, table: str, primary_key: Sequence[str]) -> None:
        """Check that each row of the result has its own key in the target, which does not change.

        Raises:
            SchemaError: the primary key has a column that can change, or lacks one that the others do not determine.
        """
        if self.query.groups is None:
            # Which rows of a gathered query have one key is checked in each batch.
            if self.gathering is None:
                self._check_scan_keys(table, primary_key)
        else:
            self._check_groups(self.query.groups, table, primary_key)

    def _check_groups(self, groups: Grouping, table: str, primary_key: Sequence[str]) -> None:
        items = dict(zip(self.names, groups.items, strict=True))
        # The output columns that copy a group expression.
        copies = {item.group: name for name, item in reversed(items.items()) if item.group is not None}
        named = set()
        for name in primary_key:
            item = items[name]
            if not item.always:
                raise SchemaError(
                    f"key column {name!r} of table {table!r} is not a column of GROUP BY as it is",
                    valid=[name for name, item in items.items() if item.group is not None]
                    or "a constant, such as 'all' AS key",
                    remedy="put the whole expression into GROUP BY, or use a target with another primary key",
                )
            if item.as_text:
                self._check_text(name, str(item.group))
            if item.group is not None:
                named.add(item.group)
        covered = self.with_determined(named)
        shown = [
            copies.get(group, f"expression {place} of GROUP BY, which the select list lacks")
            for place, group in enumerate(groups.names, 1)
            if group not in covered
        ]
        if shown:
            raise SchemaError(
                f"the primary key of table {table!r} does not contain each group expression, so groups would overwrite "
                "each other",
                received=f"({', '.join(primary_key)})",
                valid=f"also {', '.join(shown)}",
                remedy="use a target whose primary key has all columns of GROUP BY",
            )

    def _check_text(self, name: str, group: str) -> None:
        """Raise `SchemaError` if two values of a group expression can have the same text."""
        from pyspark.sql import types

        assert self.group_types is not None
        exact = (types.StringType, types.IntegralType, types.DecimalType, types.BooleanType, types.DateType)
        kind = self.group_types[group].dataType
        if isinstance(kind, types.StructType):
            # The group is a window. The item is its start or its end.
            kind = kind.fields[0].dataType
        fixed = isinstance(kind, types.TimestampNTZType) or _FIXED_ZONE.fullmatch(self.time_zone)
        if isinstance(kind, exact) or (isinstance(kind, types.TimestampType | types.TimestampNTZType) and fixed):
            return
        zone = f", session time zone {self.time_zone}" if isinstance(kind, types.TimestampType) else ""
        raise SchemaError(
            f"two groups can have the same text in key column {name!r}",
            received=f"CAST({kind.simpleString()} AS STRING){zone}",
            valid="texts of strings, integers, decimals, booleans and dates; of timestamps in time zone UTC",
            remedy="put the whole CAST into GROUP BY, or set spark.sql.session.timeZone to UTC",
        )

    def _check_scan_keys(self, table: str, primary_key: Sequence[str]) -> None:
        query = self.query
        branch = None if query.branch_column is None else self.names[query.branch_column]
        if branch is not None and branch not in primary_key:
            raise SchemaError(
                f"the primary key of table {table!r} does not distinguish the branches of UNION ALL",
                received=f"({', '.join(primary_key)})",
                valid=f"also {branch}",
            )
        for select, origins in zip(query.selects, self.origins, strict=True):
            scan = next(scan for scan in self.scans if scan.name == select.scan)
            copied = {origin for name, origin in zip(self.names, origins, strict=True) if name in primary_key}
            missing = [column for column in scan.key if (scan.name, column) not in copied]
            if missing:
                raise SchemaError(
                    f"the primary key of table {table!r} does not contain the key of scan {scan.name!r}, so its rows "
                    "would overwrite each other",
                    received=f"({', '.join(primary_key)})",
                    valid=f"also {', '.join(missing)}, selected as it is",
                    remedy="select the key columns of the scan into key columns of the target; with USING or NATURAL, "
                    f"where a plain name can be the column of another table, write {scan.name}.{missing[0]}, or the "
                    "alias of the scan; or GROUP BY the key of the target",
                )


def _words(text: str) -> str:
    return " ".join(token.text for token in tokenize(text).tokens)
