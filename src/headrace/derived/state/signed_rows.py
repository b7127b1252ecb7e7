"""Signed rows of a batch, with the number of each row's group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.derived.own_names import SIGN
from headrace.derived.state.keys import group_keys, normalized, plain
from headrace.rows.by_position import sort_indices
from headrace.rows.nested import Numbers, one_array


@dataclass(frozen=True)
class SignedRows:
    """Rows that enter or leave the groups of a query.

    Attributes:
        columns: the columns of the arguments.
        signs: 1 for each row that enters its group, -1 for each row that leaves it.
        groups: the number of each row's group.
        keys: the keys of the groups, ascending.
        values: the values of the groups, one row for each group.
    """

    columns: pa.Table
    signs: Numbers
    groups: Numbers
    keys: pa.BinaryArray
    values: pa.Table

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.keys)


def read_rows(batches: Iterable[pa.RecordBatch], groups: pa.Schema, arguments: pa.Schema) -> SignedRows | None:
    """Gather the rows of a task and number their groups; None without rows.

    Args:
        groups: the columns that group the rows. Without any, all rows are one group, which exists without rows too.
        arguments: the columns of the arguments.
    """
    gathered = list(batches)
    rows = pa.Table.from_batches(gathered).combine_chunks() if gathered else None
    if rows is None or not rows.num_rows:
        if len(groups):
            return None
        nothing = np.zeros(0, np.int64)
        return SignedRows(arguments.empty_table(), nothing, nothing, group_keys([], 1), _one_row_without_columns())
    columns = [normalized(plain(one_array(rows.column(name)))) for name in groups.names]
    encoded = group_keys(columns, rows.num_rows).dictionary_encode()
    order = sort_indices(pa.table({"key": encoded.dictionary}), ["key"])
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    numbers = rank[encoded.indices.to_numpy()]
    # Any row of a group has its values; the last one written is kept.
    member = np.empty(len(order), np.int64)
    member[numbers] = np.arange(rows.num_rows)
    values = pa.table([column.take(pa.array(member)) for column in columns], schema=_types(columns, groups.names))
    if not len(groups):
        values = _one_row_without_columns()
    signs = one_array(rows.column(SIGN)).cast(pa.int64()).to_numpy()
    return SignedRows(rows, signs, numbers, encoded.dictionary.take(order), values)


def column_of(rows: SignedRows, name: str) -> pa.Array:
    """Return a column of an argument in the type of headrace for its values."""
    return plain(one_array(rows.columns.column(name)))


def _types(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, column.type) for name, column in zip(names, columns, strict=True)])


def _one_row_without_columns() -> pa.Table:
    return pa.table({"nothing": pa.nulls(1)}).select([])
