"""Values of keys as JSON: ``{"n": …}`` for decimals, ``{"d": …}`` and ``{"t": …}`` for dates and timestamps.

Dates and timestamps are in ISO 8601. Texts, whole numbers and booleans are themselves. Bytes have another form in each
store.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

from headrace.model.tables.schema import KeyValue


def to_json(value: KeyValue) -> Any:
    """Return a value of a key, which is not bytes, as JSON has it."""
    match value:
        case decimal.Decimal():
            return {"n": str(value)}
        case datetime.datetime():
            return {"t": value.isoformat()}
        case datetime.date():
            return {"d": value.isoformat()}
    return value


def from_json(value: Any) -> KeyValue:
    """Return a value of a key; the inverse of `to_json`."""
    match value:
        case {"n": text}:
            return decimal.Decimal(text)
        case {"t": text}:
            return datetime.datetime.fromisoformat(text)
        case {"d": text}:
            return datetime.date.fromisoformat(text)
    found: KeyValue = value
    return found
