"""The limits of Tablestore, from its manual. Sizes are bytes and times are seconds, unless a name says otherwise."""

from __future__ import annotations

import re

CLOCK_SKEW = 15 * 60
"""The maximum difference between the clocks of client and service."""

MAX_BODY_BYTES = 5 * 1024 * 1024

# Tables
MAX_TABLES = 64
MAX_DEFINED_COLUMNS = 32
MIN_STREAM_HOURS = 1
MAX_STREAM_HOURS = 168
DEFAULT_VERSION_DEVIATION = 86400
"""The maximum distance of a given cell timestamp from now, for tables without this setting."""

# Rows
MAX_KEY_COLUMNS = 4
MAX_KEY_VALUE_BYTES = 1024
MAX_VALUE_BYTES = 2 * 1024 * 1024
MAX_COLUMNS_PER_WRITE = 1024

# Requests
MAX_COLUMNS_TO_GET = 128
MAX_FILTERS = 10
SERVED_COLUMNS_TO_GET = 1024
"""The limit of the service, as tests of its SDKs in Java, C# and PHP show. The manual has a lower one."""
SERVED_FILTERS = 32
"""The limit of the service, as tests of its SDK in Java show. Filters that combine others count too."""
MAX_BATCH_GET_ROWS = 100
MAX_BATCH_WRITE_ROWS = 200
MAX_BATCH_WRITE_BYTES = 4 * 1024 * 1024
MAX_PAGE_ROWS = 5000
MAX_PAGE_BYTES = 4 * 1024 * 1024
DEFAULT_SPLIT_UNIT_BYTES = 100 * 1024 * 1024

# Tunnels
FULL_PAGE_ROWS = 500
FULL_PAGE_BYTES = 900 * 1024
"""The official workers regard a page of this size as full, and request the next one immediately."""
HEARTBEAT_TIMEOUT = 300.0

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_INSTANCE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,15}", re.ASCII)


def is_name(text: str) -> bool:
    """Return whether a name of a table or column is valid: up to 255 letters, digits and ``_``, no digit first."""
    return _NAME.fullmatch(text) is not None


def is_attribute_name(text: str) -> bool:
    """Return whether a name of an attribute is valid: 1 to 255 bytes, the first of which is not ``#``.

    The service accepts more names than its manual documents, as tests of its SDK in Java show.
    """
    return 1 <= len(text.encode()) <= 255 and not text.startswith("#")


def is_instance_name(text: str) -> bool:
    """Return whether a name of an instance is valid: 3 to 16 letters, digits and ``-``, a letter first."""
    return _INSTANCE_NAME.fullmatch(text) is not None
