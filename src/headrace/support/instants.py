"""Instants as texts."""

from __future__ import annotations

import datetime


def instant(seconds: float | None) -> str | None:
    """Return seconds since 1970 as ISO 8601 with milliseconds; None for None."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="milliseconds")
