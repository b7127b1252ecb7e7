"""`headrace table diff` and `headrace table checksum`: text, JSON and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import main
from headrace.stores.registry import open as open_store

Run = Callable[..., Any]
COLUMNS = {"id": "string", "price": "double", "tags": "map<string,long>"}


@pytest.fixture
def tables(store: str, tmp_path: Path) -> str:
    """A table, and a table of another store with a changed, a missing and another row; return the other store."""
    with open_store(store, create=True) as one, open_store(tmp_path / "other", create=True) as other:
        one.create_table("orders", COLUMNS, "id").put(
            [{"id": "o1", "price": 1.5}, {"id": "o2", "price": 2.5, "tags": [("a", 1), ("b", 2)]}, {"id": "o3"}]
        )
        other.create_table("copy", {**COLUMNS, "price": "float", "note": "string"}, "id").put(
            [{"id": "o1", "price": 9}, {"id": "o2", "price": 2.5, "tags": [("b", 2), ("a", 1)]}, {"id": "o4"}]
        )
    return str(tmp_path / "other")


def diff(store: str, *arguments: str) -> int:
    return main(["table", "diff", "orders", "copy", "-s", store, *arguments])


def test_differences_are_printed_as_json(store: str, tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(store, "--other-store", tables, "--json") == 1
    assert json.loads(capsys.readouterr().out) == {
        "a": "orders",
        "b": "copy",
        "equal": False,
        "rows_a": 3,
        "rows_b": 3,
        "only_in_a": 1,
        "only_in_b": 1,
        "changed": 1,
        "compared": ["price", "tags"],
        "columns": [
            {"column": "price", "a": "double", "b": "float", "compared": True},
            {"column": "note", "a": None, "b": "string", "compared": False},
        ],
        "differences": [
            {
                "kind": "changed",
                "key": {"id": "o1"},
                "columns": ["price"],
                "a": {"id": "o1", "price": 1.5, "tags": None},
                "b": {"id": "o1", "price": 9.0, "tags": None},
            },
            {
                "kind": "only in a",
                "key": {"id": "o3"},
                "columns": [],
                "a": {"id": "o3", "price": None, "tags": None},
                "b": None,
            },
            {
                "kind": "only in b",
                "key": {"id": "o4"},
                "columns": [],
                "a": None,
                "b": {"id": "o4", "price": None, "tags": None},
            },
        ],
        "ranges": [],
    }


def test_differences_are_printed_as_text(store: str, tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(store, "--other-store", tables, "--limit", "2", "--recheck-after", "0.01") == 1
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines()]
    assert lines[0] == ["The", "tables", "differ."]
    assert ["changed", "1"] in lines
    assert ["note", "missing", "string", "false"] in lines
    assert ["changed", "id=o1", "price", "1.5", "9.0"] in lines
    assert any(line[:4] == ["only", "in", "a", "id=o3"] for line in lines)
    assert not any(line[:3] == ["only", "in", "b"] for line in lines)
    assert "ranges" not in printed.out
    assert "1 more rows differ" in printed.err


def test_binary_keys_are_printed_like_other_binary_values(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(store, create=True) as opened:
        for name, value in (("orders", b"\xfe"), ("copy", b"")):
            opened.create_table(name, {"id": "binary", "v": "binary"}, "id").put([{"id": b"\xff\x00", "v": value}])
    assert diff(store) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["changed", "id=ff00", "v", "fe"] in lines


def test_checksums_are_printed_by_key_range(
    store: str, tables: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff(store, "--other-store", tables, "--checksums", "--ranges", "2", "--json") == 1
    found = json.loads(capsys.readouterr().out)["ranges"]
    assert (found[0]["low"], found[-1]["high"]) == ([], [])
    assert found[0]["high"] == found[1]["low"] != []
    assert sum(part["rows_a"] for part in found) == 3
    assert [part["equal"] for part in found] == [part["checksum_a"] == part["checksum_b"] for part in found]
    whole = run("table", "checksum", "orders", "--columns", "price,tags")
    assert (whole["table"], whole["rows"], whole["columns"]) == ("orders", 3, ["id", "price", "tags"])
    total = sum(int(part["checksum_a"], 16) for part in found) % 2**64
    assert int(whole["checksum"], 16) == total
    assert sum(part["rows"] for part in whole["ranges"]) == 3
    with open_store(store) as opened:
        assert headrace.checksum_table(opened.table("orders")).checksum == total
    assert diff(store, "--other-store", tables, "--checksums", "--ranges", "2") == 1
    assert found[0]["checksum_a"] in capsys.readouterr().out


def test_the_exit_code_is_that_of_the_program_diff(
    store: str, tables: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("table", "diff", "orders", "orders")["equal"] is True
    assert main(["-s", store, "table", "diff", "orders", "orders"]) == 0
    assert capsys.readouterr().out.startswith("The tables are equal.")
    assert "no such table" in run("table", "diff", "orders", "nothing", code=2)["error"]["message"]
    assert "no such column" in run("table", "diff", "orders", "orders", "-c", "no", code=2)["error"]["message"]
    missing = run("table", "diff", "orders", "copy", "--other-store", f"{tables}-2", code=2)["error"]
    assert missing["type"] == "NotFoundError"
    for rubbish in (["--ranges", "0"], ["--limit", "-1"], ["--recheck-after", "-1"], ["--parallel", "x"]):
        assert diff(store, *rubbish) == 2
    capsys.readouterr()
    # Other commands keep their exit code.
    assert run("table", "checksum", "nothing", code=1)["error"]["type"] == "NotFoundError"
