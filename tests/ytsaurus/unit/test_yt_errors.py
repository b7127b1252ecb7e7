"""Errors of YTsaurus: round trips of the tree, codes, messages."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.errors import StoreError
from headrace_ytsaurus.wire.errors import Code, YtError


def test_errors_round_trip() -> None:
    inner = YtError(Code.TABLET_NOT_MOUNTED, "Tablet 1-2-3-4 is not mounted", attributes={"tablet_id": "1-2-3-4"})
    error = YtError(Code.GENERIC, "Error committing transaction", inner=[inner])
    value = error.to_json()
    assert value["inner_errors"][0]["attributes"] == {"tablet_id": "1-2-3-4"}
    for again in (YtError.from_json(value), pickle.loads(pickle.dumps(error))):
        assert again.to_json() == value
        assert str(again) == str(error)
    assert "Error committing transaction: Tablet 1-2-3-4 is not mounted" in str(error)
    assert isinstance(error, StoreError)


def test_messages_contain_received_and_valid_values() -> None:
    error = YtError(1, "no such mode", received="w", valid=["r", "x"], remedy="choose one")
    assert error.to_json()["message"] == "no such mode; received: w; valid: r, x; choose one"


def test_codes_are_found_in_the_whole_tree() -> None:
    error = YtError(1, "outer", inner=[YtError(2, "other"), YtError(1, "middle", inner=[YtError(1702, "cause")])])
    found = error.find(1702)
    assert found is not None
    assert found.message == "cause"
    assert error.find(999) is None
    assert error.contains(999, 1702)


@pytest.mark.parametrize(
    "value", [None, 5, "x", {}, {"code": "x", "message": 5}, {"inner_errors": 5}, {"inner_errors": [None], "code": 7}]
)
def test_invalid_parts_of_an_error_are_ignored(value: Any) -> None:
    error = YtError.from_json(value)
    assert error.message
    assert YtError.from_json(error.to_json()).to_json() == error.to_json()


def test_deeply_nested_errors_are_truncated() -> None:
    value: Any = {"code": 1, "message": "bottom"}
    for _ in range(10_000):
        value = {"code": 1, "message": "m" * 10_000, "inner_errors": [value]}
    assert len(list(YtError.from_json(value))) < 100
