"""Findings of `headrace doctor` and `headrace store check`: values that any layer can make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCARCE_DISK_BYTES = 2 << 30
NO_DISK_BYTES = 100 << 20


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    ABSENT = "absent"
    """An optional part is not installed."""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        remedy: how to repair the problem; empty if there is none.
        sql: statements that repair it, each with its semicolon, for a person who may run them; empty if there are none.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    sql: str = ""


def disk_space(name: str, free: int, found: str, remedy: str) -> Finding:
    """Return the result of a check of free space.

    Args:
        free: the free space in bytes.
        found: the text of it.
        remedy: how to have more.
    """
    if free >= SCARCE_DISK_BYTES:
        return Finding(name, Status.OK, found)
    return Finding(name, Status.FAIL if free < NO_DISK_BYTES else Status.WARN, found, remedy)
