"""Spark's masters."""

from __future__ import annotations

import re

# One process, and local-cluster, whose executors are other processes of this machine.
_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?")


def is_this_machine(master: str) -> bool:
    """Return whether all executors of a master are on the driver's machine."""
    return _LOCAL.fullmatch(master) is not None
