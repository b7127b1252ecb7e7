"""`FollowedPlan`: a checked query with the names of its output columns, and its rules for the key of the target."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.derived.follow.checks import CheckedQuery, read_followed_query
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.follow.shape import Select
from headrace.derived.own_names import value_column
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.group_states import GroupStates
from headrace.errors import SchemaError, SqlError
from headrace.sql_text.lexer import quote_name, tokenize

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# In other zones the clocks go back once a year, and an hour's texts repeat.
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu)|Z|(UTC|GMT)?[+-]\d{1,2}(:?\d{2}){0,2}", re.IGNORECASE)
# The names of columns are a part of the fingerprint, which is computed from tokens.
_NOT_A_TOKEN = re.compile(r"[`'\"]|--|/[/*]")


@dataclass(frozen=True)
class FollowedPlan:
    """A query over followed scans, as its batches run it.

    Attributes:
        scans: the followed scans that it reads.
        checked: the query, split, with Spark's types.
        names: the names of the output columns.
    """

    scans: tuple[FollowedScan, ...]
    checked: CheckedQuery
    names: tuple[str, ...]

    @classmethod
    def read(
        cls, spark: SparkSession, text: str, scans: Iterable[FollowedScan], columns: Sequence[str] | None = None
    ) -> FollowedPlan:
        """Split and check a query.

        Args:
            text: Spark SQL, without the functions of the dialect.
            columns: names for the output columns, by position; by default they have the names in the query.

        Raises:
            SqlError: the query cannot be followed.
            AnalysisException, ParseException: the query is invalid, in Spark's words.
        """
        known = {scan.name: scan for scan in scans}
        checked = read_followed_query(spark, text, {name: scan.schema for name, scan in known.items()})
        names = tuple(checked.schema.names if columns is None else columns)
        if len(names) != len(checked.schema.names):
            raise SqlError(
                "the column list and the query do not have the same number of columns",
                received=checked.schema.names,
                valid=names,
            )
        return cls(tuple(known[name] for name in checked.query.scans), checked, names)

    @property
    def output(self) -> pa.Schema:
        """The output columns."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        types = to_arrow_schema(self.checked.schema, timezone="UTC")
        return pa.schema([field.with_name(name) for name, field in zip(self.names, types, strict=True)])

    @property
    def fingerprint(self) -> str:
        """A hash of the meaning of the query: texts with other spaces or comments have the same."""
        query, groups = self.checked.query, self.checked.groups
        names = (quote_name(name) if _NOT_A_TOKEN.search(name) else name for name in self.names)
        texts = [query.rows_sql, query.result_sql or "", ", ".join(names)]
        words = [" ".join(token.text for token in tokenize(text).tokens) for text in texts]
        types = "" if groups is None else groups.simpleString()
        kept = [f"{each.kind} {each.arguments}" for each in query.aggregates]
        return hashlib.sha256("\n".join((*words, types, *kept)).encode()).hexdigest()

    def states(self, *, keeps_previous: bool) -> GroupStates | None:
        """Return the state of the query's groups; None for a query without aggregates.

        Raises:
            UnsupportedError: an aggregate cannot be kept for the types of its arguments.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        query = self.checked.query
        if self.checked.groups is None:
            return None
        groups = to_arrow_schema(self.checked.groups, timezone="UTC")
        rows = to_arrow_schema(self.checked.rows, timezone="UTC")
        aggregates = [
            Aggregate(
                each.kind,
                each.arguments,
                tuple(rows.field(name).type for name in each.arguments),
                groups.field(value_column(number)).type,
                each.text,
            )
            for number, each in enumerate(query.aggregates)
        ]
        keys = pa.schema([groups.field(name) for name in query.group_names])
        return GroupStates(keys, aggregates, keeps_previous=keeps_previous)

    def check_key(self, table: str, primary_key: Sequence[str]) -> None:
        """Check that each row of the result has its own key in the target, which does not change.

        Raises:
            SchemaError: the primary key has a column that can change, or lacks one.
        """
        if self.checked.query.is_aggregate:
            self._check_groups(table, primary_key)
        else:
            self._check_scan_keys(table, primary_key)

    def _check_groups(self, table: str, primary_key: Sequence[str]) -> None:
        query = self.checked.query
        items = dict(zip(self.names, query.items, strict=True))
        covered = set()
        for name in primary_key:
            item = items[name]
            if not item.always:
                raise SchemaError(
                    f"key column {name!r} of table {table!r} is not a column of GROUP BY as it is",
                    valid=self._copies() or "a constant, such as 'all' AS key",
                    remedy="put the whole expression into GROUP BY, or use a target with another primary key",
                )
            if item.as_text:
                self._check_text(name, str(item.group))
            covered.add(item.group)
        missing = [name for name in query.group_names if name not in covered]
        if missing:
            shown = [self._name_of(group) for group in missing]
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

        assert self.checked.groups is not None
        exact = (types.StringType, types.IntegralType, types.DecimalType, types.BooleanType, types.DateType)
        kind = self.checked.groups[group].dataType
        if isinstance(kind, types.StructType):
            # The group is a window. The item is its start or its end.
            kind = kind.fields[0].dataType
        fixed = isinstance(kind, types.TimestampNTZType) or _FIXED_ZONE.fullmatch(self.checked.time_zone)
        if isinstance(kind, exact) or (isinstance(kind, types.TimestampType | types.TimestampNTZType) and fixed):
            return
        zone = f", session time zone {self.checked.time_zone}" if isinstance(kind, types.TimestampType) else ""
        raise SchemaError(
            f"two groups can have the same text in key column {name!r}",
            received=f"CAST({kind.simpleString()} AS STRING){zone}",
            valid="texts of strings, integers, decimals, booleans and dates; of timestamps in time zone UTC",
            remedy="put the whole CAST into GROUP BY, or set spark.sql.session.timeZone to UTC",
        )

    def _copies(self) -> list[str]:
        items = zip(self.names, self.checked.query.items, strict=True)
        return [name for name, item in items if item.group is not None]

    def _name_of(self, group: str) -> str:
        """Return the output column that copies a group expression, or its place in GROUP BY."""
        for name, item in zip(self.names, self.checked.query.items, strict=True):
            if item.group == group:
                return name
        place = self.checked.query.group_names.index(group)
        return f"expression {place + 1} of GROUP BY, which the select list lacks"

    def _check_scan_keys(self, table: str, primary_key: Sequence[str]) -> None:
        query = self.checked.query
        branch = None if query.branch_column is None else self.names[query.branch_column]
        if branch is not None and branch not in primary_key:
            raise SchemaError(
                f"the primary key of table {table!r} does not distinguish the branches of UNION ALL",
                received=f"({', '.join(primary_key)})",
                valid=f"also {branch}",
            )
        for select, origins in zip(query.selects, self.checked.origins, strict=True):
            scan = next(scan for scan in self.scans if scan.name == _scan_of(select))
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


def _scan_of(select: Select) -> str:
    source = select.followed
    while source is not None and source.scan is None:
        source = source.query[0].followed
    assert source is not None, "each SELECT of a followed query reads a scan"
    return str(source.scan)
