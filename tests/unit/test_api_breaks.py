"""A change of the public names that can break a program is declared before it is released."""

from __future__ import annotations

import pytest

from tests.api.baseline import RELEASED, breaks, current, declared

OLD = """
class Table:
    def put(self, rows: list, *, retry: bool = False) -> int: ...
def open(url: str) -> Table: ...
"""


def test_no_public_name_breaks_a_program_undeclared() -> None:
    """``python -m tests.api.baseline`` records the names when a version is released."""
    found = breaks(RELEASED.read_text(), current())
    assert {path: text for path, text in found.items() if path not in declared()} == {}
    assert declared() <= set(found), "a declared change is none"


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (OLD.replace("put", "insert"), "headrace.Table.put"),
        (OLD.replace("*, retry: bool = False", "*, again: bool = False"), "headrace.Table.put"),
        (OLD.replace("url: str", "url: str, kind: str"), "headrace.open"),
        (OLD.partition("def open")[0], "headrace.open"),
    ],
)
def test_a_removed_or_changed_name_is_a_break(new: str, path: str) -> None:
    assert list(breaks(OLD, new)) == [path]


def test_a_new_name_or_an_optional_parameter_is_none() -> None:
    assert breaks(OLD, OLD.replace("url: str", "url: str, kind: str = 'file'") + "\ndef close() -> None: ...") == {}
