"""`FollowedPlan` without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.derived.follow.plan import FollowedPlan


def fingerprint(*names: str) -> str:
    query: Any = SimpleNamespace(rows_sql="SELECT id, 1 FROM o", groups=None)
    schema: Any = None
    return FollowedPlan((), names, query, schema, schema, None, (), "UTC").fingerprint


def test_names_of_columns_are_not_read_as_sql() -> None:
    names = ("id", "a.b", "a`b", "it's", 'say "x"', "a--b", "a--c", "a/*b", "a//b", "group by", "1x")
    assert len({fingerprint("id", name) for name in names}) == len(names)
