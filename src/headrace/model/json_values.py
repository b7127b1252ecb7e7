"""Values of rows as values of JSON."""

from __future__ import annotations

import base64
import datetime
import decimal
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value of Python as JSON has it.

    Timestamps and dates are ISO 8601 texts, intervals are seconds, decimals are texts, binary is base64. NaN and the
    infinities, which JSON numbers cannot express, are the texts ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value


def _key(value: Any) -> str:
    """Return a key of a map as the text that its value has."""
    return ("true" if value else "false") if isinstance(value, bool) else str(plain(value))
