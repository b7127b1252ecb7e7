"""Methods ``__del__`` that print nothing at the end of the interpreter."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def quiet_at_the_end(finalize: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let a ``__del__`` drop its errors at the end of the interpreter.

    Modules may have lost their names by then: each is None. Python would print a traceback. The system closes the files
    that stay open, as after a kill.
    """
    # Names of this function stay.
    is_finalizing = sys.is_finalizing

    @functools.wraps(finalize)
    def quietly(self: Any) -> None:
        try:
            finalize(self)
        except Exception:
            if not is_finalizing():
                raise

    return quietly
