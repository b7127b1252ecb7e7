"""The results of comparisons, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.inspect.comparing.columns import ColumnDifference
from headrace.model.tables.conditions import KeyRange

RowDifferenceKind = Literal["only in a", "only in b", "changed"]


@dataclass(frozen=True)
class RowDifference:
    """A row that differs in two tables.

    Attributes:
        kind: ``only in a``, ``only in b`` or ``changed``.
        key: the key columns, in the first table's types if it has the row.
        columns: the columns that differ; empty if only one table has the row.
        a: the key and the compared columns in the first table; None if it has no such row.
        b: the same in the second table.
    """

    kind: RowDifferenceKind
    key: Mapping[str, Any]
    columns: tuple[str, ...]
    a: Mapping[str, Any] | None
    b: Mapping[str, Any] | None


@dataclass(frozen=True)
class RangeChecksum:
    """The rows of one table in a key range: their number, and the checksum of `headrace.inspect.comparing.digests`."""

    keys: KeyRange
    rows: int
    checksum: int


@dataclass(frozen=True)
class TableChecksum:
    """The rows of a table: their number and their checksum.

    Attributes:
        columns: the columns of the checksum. Tables of different columns have different checksums, unless a column is
            null everywhere.
        rows: the number of rows.
        checksum: the sum of the checksums of the ranges modulo 2^64, so it does not depend on them.
        ranges: the parts, in key order.

    Examples:
        >>> before = headrace.checksum_table(orders)
        >>> version = orders.put([{"id": "o1", "price": 10.0}])
        >>> headrace.checksum_table(orders).checksum == before.checksum
        True
    """

    columns: tuple[str, ...]
    rows: int
    checksum: int
    ranges: tuple[RangeChecksum, ...]


@dataclass(frozen=True)
class RangeComparison:
    """A key range of two tables: the rows and checksums of both."""

    a: RangeChecksum
    b: RangeChecksum

    @property
    def equal(self) -> bool:
        return (self.a.rows, self.a.checksum) == (self.b.rows, self.b.checksum)


@dataclass(frozen=True)
class TableDiff:
    """The differences of two tables.

    Attributes:
        rows_a: the number of rows of the first table, in the first pass.
        rows_b: the number of rows of the second table, in the first pass.
        only_in_a: the number of keys that only the first table has.
        only_in_b: the number of keys that only the second table has.
        changed: the number of keys with different values.
        compared: the columns that were compared besides the key.
        columns: the columns that differ in the schemas.
        differences: the first differing rows in key order, up to the limit.
        ranges: rows and checksums by key range, in the first pass; empty unless they were requested.

    Examples:
        >>> copy = store.create_table("copy", {"id": "string", "price": "double"}, "id")
        >>> for difference in headrace.diff_tables(orders, copy, limit=1).differences:
        ...     print(difference)
        RowDifference(kind='only in a', key={'id': 'o1'}, columns=(), a={'id': 'o1', 'price': 10.0}, b=None)
    """

    rows_a: int
    rows_b: int
    only_in_a: int
    only_in_b: int
    changed: int
    compared: tuple[str, ...]
    columns: tuple[ColumnDifference, ...]
    differences: tuple[RowDifference, ...]
    ranges: tuple[RangeComparison, ...] = ()

    @property
    def differing_rows(self) -> int:
        """The number of differing keys."""
        return self.only_in_a + self.only_in_b + self.changed

    @property
    def equal(self) -> bool:
        """Whether no row differs, and no column is missing or has a type without common values."""
        return not self.differing_rows and all(column.compared for column in self.columns)
