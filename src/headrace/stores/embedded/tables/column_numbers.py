"""The numbers of columns, which they keep under each name, and in each version of their table's schema.

The number of a column is its place, until a column is dropped: then the metadata of the stored schema has the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.model.tables.alterations import Alteration
from headrace.model.tables.schema import TableSchema

_NUMBERS = b"headrace.numbers"


class Numbers(NamedTuple):
    """The numbers of columns, in order, and the number of columns that the table has ever had."""

    of_columns: Sequence[int]
    ever: int

    @classmethod
    def of(cls, schema: pa.Schema) -> Numbers:
        """Return the numbers of a stored schema."""
        text = (schema.metadata or {}).get(_NUMBERS)
        return cls(range(len(schema)), len(schema)) if text is None else cls(*json.loads(text))

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema that has these numbers."""
        if list(self.of_columns) == list(range(self.ever)):
            return schema
        return schema.with_metadata({_NUMBERS: json.dumps([list(self.of_columns), self.ever])})

    def altered(self, before: TableSchema, after: TableSchema, alteration: Alteration) -> Numbers:
        """Return the numbers of the columns after changes."""
        known = dict(zip(before.names, self.of_columns, strict=True))
        numbers, ever = [], self.ever
        for name in after.names:
            former = alteration.name_before(name)
            numbers.append(ever if former is None else known[former])
            ever += former is None
        return Numbers(numbers, ever)
