"""Options of writes."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import OptionError
from headrace_tablestore.wire.limits import (
    MAX_BATCH_WRITE_BYTES,
    MAX_BATCH_WRITE_ROWS,
    MAX_COLUMNS_PER_WRITE,
    MAX_KEY_VALUE_BYTES,
    MAX_VALUE_BYTES,
)

_MOST_IN_FLIGHT = 500
_LONGEST_SECONDS = 1e9


@dataclass(frozen=True)
class WriteOptions:
    """Options of `Writer`.

    Attributes:
        rows_per_request: maximum number of rows in one request.
        bytes_per_request: maximum number of bytes of rows in one request.
        requests_in_flight: maximum number of concurrent requests of one write.
        retry_seconds: time during which rows with a temporary error are sent again; 0 means never.
        retry_count: most repetitions; None is no limit.
        retry_pause: longest pause before a retry, in seconds.
        max_key_bytes: maximum number of bytes of one value of a key.
        max_cell_bytes: maximum number of bytes of one attribute's value.
        max_columns: maximum number of attributes in one row of a write.
        ignore_failed_rows: log rows that cannot be written instead of failing.
    """

    rows_per_request: int = MAX_BATCH_WRITE_ROWS
    bytes_per_request: int = MAX_BATCH_WRITE_BYTES
    requests_in_flight: int = 10
    retry_seconds: float = 30.0
    retry_count: int | None = None
    retry_pause: float = 1.0
    max_key_bytes: int = MAX_KEY_VALUE_BYTES
    max_cell_bytes: int = MAX_VALUE_BYTES
    max_columns: int = MAX_COLUMNS_PER_WRITE
    ignore_failed_rows: bool = False

    def __post_init__(self) -> None:
        for name, most in (
            ("rows_per_request", MAX_BATCH_WRITE_ROWS),
            ("bytes_per_request", MAX_BATCH_WRITE_BYTES),
            ("requests_in_flight", _MOST_IN_FLIGHT),
            ("max_key_bytes", MAX_KEY_VALUE_BYTES),
            ("max_cell_bytes", MAX_VALUE_BYTES),
            ("max_columns", MAX_COLUMNS_PER_WRITE),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise OptionError(f"{name} cannot be used", received=repr(value)[:200], valid=f"1 to {most}")
        for name in ("retry_seconds", "retry_pause"):
            value = getattr(self, name)
            # NaN is neither above 0 nor below the limit.
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_SECONDS:
                raise OptionError(
                    f"{name} cannot be used", received=repr(value)[:200], valid="a number of seconds from 0 on"
                )
        count = self.retry_count
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise OptionError(
                "retry_count cannot be used", received=repr(count)[:200], valid="a whole number from 0 on, or None"
            )
        if not isinstance(self.ignore_failed_rows, bool):
            raise OptionError("ignore_failed_rows must be True or False", received=repr(self.ignore_failed_rows)[:200])
