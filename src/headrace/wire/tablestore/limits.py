"""What Tablestore allows, after its manual. Sizes are bytes, times are seconds unless a name says otherwise."""

from __future__ import annotations

import re

CLOCK_SKEW = 15 * 60
"""How far the clocks of client and service may be apart."""

MAX_BODY_BYTES = 5 * 1024 * 1024

# Tables
MAX_TABLES = 64
MAX_DEFINED_COLUMNS = 32
MIN_STREAM_HOURS = 1
MAX_STREAM_HOURS = 168
DEFAULT_VERSION_DEVIATION = 86400
"""How far a given cell timestamp may be from now, where a table has no setting of its own."""

# Rows
MAX_KEY_COLUMNS = 4
MAX_KEY_VALUE_BYTES = 1024
MAX_VALUE_BYTES = 2 * 1024 * 1024
MAX_COLUMNS_PER_WRITE = 1024

# Requests
MAX_COLUMNS_TO_GET = 128
MAX_FILTERS = 10
SERVED_COLUMNS_TO_GET = 1024
"""How many the service takes, as tests of its SDKs in Java, C# and PHP show. Its manual promises fewer."""
SERVED_FILTERS = 32
"""How many the service takes, as tests of its SDK in Java show; those that combine others count. See above."""
MAX_BATCH_GET_ROWS = 100
MAX_BATCH_WRITE_ROWS = 200
MAX_BATCH_WRITE_BYTES = 4 * 1024 * 1024
MAX_PAGE_ROWS = 5000
MAX_PAGE_BYTES = 4 * 1024 * 1024
DEFAULT_SPLIT_UNIT_BYTES = 100 * 1024 * 1024

# Tunnels
FULL_PAGE_ROWS = 500
FULL_PAGE_BYTES = 900 * 1024
"""From so many rows or bytes on the official workers take a page for full and ask for the next one at once."""
HEARTBEAT_INTERVAL = 30.0
HEARTBEAT_TIMEOUT = 300.0

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}", re.ASCII)
_INSTANCE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,15}", re.ASCII)


def is_name(text: str) -> bool:
    """Tell whether a table or a column may be called so: letters, digits and ``_``, no digit first, at most 255."""
    return _NAME.fullmatch(text) is not None


def is_attribute_name(text: str) -> bool:
    """Tell whether a cell's column may be called so: 1 to 255 bytes, the first of which is not ``#``.

    The service takes more than its manual promises, as tests of its SDK in Java show.
    """
    return 1 <= len(text.encode()) <= 255 and not text.startswith("#")


def is_instance_name(text: str) -> bool:
    """Tell whether an instance may be called so: a letter, then letters, digits and ``-``, 3 to 16 characters."""
    return _INSTANCE_NAME.fullmatch(text) is not None
