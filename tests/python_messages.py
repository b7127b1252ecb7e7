"""What Python itself prints into the output of the programs under test."""

from __future__ import annotations

import re

# Python 3.13.0 to 3.13.2 print this when they end, for each thread that was not begun by Python (gh-130522).
_AT_THE_END = re.compile(r"Exception ignored in: <function _DeleteDummyThreadOnDel.*\n.*\n.*\nTypeError: .*\n?")


def without_end_of_python(printed: str) -> str:
    """Return the output of a program without the messages of a fault of Python at its end."""
    return _AT_THE_END.sub("", printed)
