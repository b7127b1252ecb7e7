"""How much the tests do: `make test` is quick, `make test-all` is thorough.

The environment's HEADRACE_TESTS is ``quick`` (the default) or ``thorough``. Quick runs have every test, with fewer
examples and fewer commits.
"""

from __future__ import annotations

import os

LEVELS = ("quick", "thorough")
LEVEL = os.environ.get("HEADRACE_TESTS", "quick")
if LEVEL not in LEVELS:
    raise ValueError(f"HEADRACE_TESTS is {LEVEL!r}; valid: {', '.join(LEVELS)}")
THOROUGH = LEVEL == "thorough"


def thorough(count: int) -> int:
    """Return a count in a thorough run, a fifth of it in a quick one."""
    return count if THOROUGH else max(1, count // 5)
