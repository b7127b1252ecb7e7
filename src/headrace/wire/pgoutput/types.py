"""The oids of PostgreSQL's types that the decoder converts. They are the same in every version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID, JSON = 16, 17, 18, 19, 20, 21, 23, 25, 26, 114
FLOAT4, FLOAT8, UNKNOWN, BPCHAR, VARCHAR = 700, 701, 705, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID, JSONB, XML = 1082, 1083, 1114, 1184, 1700, 2950, 3802, 142
INET, BOXES = 869, 1020

TEXTS: Final = frozenset({NAME, TEXT, JSON, UNKNOWN, BPCHAR, VARCHAR, XML})
"""The types whose binary format is their text."""

ARRAYS: Final[Mapping[int, int]] = {
    143: XML,
    199: JSON,
    1000: BOOL,
    1001: BYTEA,
    1003: NAME,
    1005: INT2,
    1007: INT4,
    1009: TEXT,
    1014: BPCHAR,
    1015: VARCHAR,
    1016: INT8,
    1021: FLOAT4,
    1022: FLOAT8,
    1028: OID,
    1041: INET,
    1115: TIMESTAMP,
    1182: DATE,
    1183: TIME,
    1185: TIMESTAMPTZ,
    1231: NUMERIC,
    2951: UUID,
    3807: JSONB,
}
"""The type of an array → the type of its elements."""

_KEYS: Final = TEXTS | {NUMERIC, TIME, UUID, JSONB, BYTEA, INT8, INT2, INT4, OID, BOOL, DATE, TIMESTAMP, TIMESTAMPTZ}
_BINARY: Final = _KEYS | {FLOAT4, FLOAT8}


def in_binary(oid: int, *, in_key: bool = False) -> bool:
    """Return whether the decoder reads a type in binary format.

    A slot sends one format for all columns. So a table with a column of another type must be read in text format, where
    each text is PostgreSQL's own.

    Args:
        in_key: whether a column of this type is in the key, where floating-point numbers and arrays are texts.
    """
    return oid in _KEYS if in_key else oid in _BINARY or ARRAYS.get(oid) in _BINARY
