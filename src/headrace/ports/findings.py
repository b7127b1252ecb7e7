"""Findings of `headrace doctor`: values that any layer can make."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


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
