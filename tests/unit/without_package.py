"""Opens a store without a package, in its own process, because a process loads modules once."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
sys.modules[sys.argv[1]] = None
import headrace
from headrace.errors import HeadraceError
try:
    headrace.open(sys.argv[2])
except HeadraceError as error:
    print(type(error).__name__, error)
"""


def error_without(module: str, url: str) -> str:
    """Return the name and message of the error of opening a store if a module cannot be imported."""
    done = subprocess.run([sys.executable, "-c", _CODE, module, url], capture_output=True, text=True, check=True)
    return done.stdout
