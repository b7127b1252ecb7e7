"""Loads that would lose rows, mistake values or leave something behind: they say so, with line and column."""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import main

Run = Callable[..., Any]

ROWS = "a,b,n\n1,x,10\n1,y,20\n1,x,30\n2,x,40\n"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.csv"
    file.write_text(ROWS)
    return str(file)


@pytest.mark.parametrize("key", [["-k", "a", "-k", "b"], ["-k", "a,b"], ["--key", "a, b"]])
def test_a_key_is_written_in_both_ways_in_all_commands(run: Run, rows: str, key: list[str]) -> None:
    loaded = run("load", rows, "-t", "loaded", *key)
    assert (loaded["rows"], loaded["replaced"]) == (4, 1)
    run("table", "create", "created", "-c", "a=long", "-c", "b=string", "-c", "n=long", *key)
    for name in ("loaded", "created"):
        assert run("table", "describe", name)["primary_key"] == ["a", "b"]
    put = run("table", "put", "created", rows)
    assert (put["rows"], put["replaced"]) == (4, 1)
    assert [row["n"] for row in run("table", "scan", "created", "-c", "n")] == [30, 20, 40]
    run("load", rows, "-q", "loaded_queue", "-p", "3", *key)
    run("queue", "create", "queue", "-c", "a=long", "-c", "b=string", "-c", "n=long")
    assert run("queue", "append", "queue", rows, *key)["rows"] == 4


def test_column_types_are_written_in_both_ways(run: Run) -> None:
    types = {"a": "long", "b": "struct<x:decimal(4,1),y:array<int>>", "c": "map<string,long>", "d": "string not null"}
    texts = [f"{name}={kind}" for name, kind in types.items()]
    run("queue", "create", "apart", *(each for text in texts for each in ("-c", text)))
    run("queue", "create", "together", "-c", ",".join(texts[:3]), "-c", texts[3])
    assert run("queue", "describe", "together")["columns"] == run("queue", "describe", "apart")["columns"]
    # A name can have both characters.
    run("queue", "create", "names", "-c", "a,b=long", "-c", "c=d=long")
    assert [column["column"] for column in run("queue", "describe", "names")["columns"]] == ["a,b", "c=d"]


@pytest.mark.parametrize("columns", [["-c", "b", "-c", "n"], ["--columns", "b,n"]])
def test_columns_are_written_in_both_ways_in_all_commands(run: Run, rows: str, store: str, columns: list[str]) -> None:
    run("load", rows, "-t", "t", "-k", "a,b")
    assert run("table", "scan", "t", *columns)[0] == {"b": "x", "n": 30}
    assert run("table", "diff", "t", "t", *columns)["equal"]
    run("table", "checksum", "t", *columns)
    exported = Path(store).with_name("t.csv")
    run("export", "t", str(exported), *columns)
    assert exported.read_text().splitlines()[0] == '"b","n"'
    run("table", "update", "t", "--key", "a=1", "--key", "b=x", "--set-null", "n")
    assert run("table", "scan", "t", "-n", "1")["n"] is None


def test_a_name_with_a_comma_is_one_name(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text('"a,b",c\n1,2\n')
    run("load", str(file), "-t", "t", "-k", "a,b")
    assert run("table", "describe", "t")["primary_key"] == ["a,b"]


def test_rows_that_replace_rows_of_the_same_load_are_counted(
    run: Run, rows: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    # Each row is a write of its own, and the keys are counted in between.
    monkeypatch.setattr("headrace.cli.loading._WRITE_BYTES", 1)
    assert main(["load", rows, "-t", "t", "-k", "a", "-s", store]) == 0
    assert "2 of them replaced rows of the same load, with the same a." in capsys.readouterr().out
    # The rows that the table had before are not counted.
    assert run("load", rows, "-t", "t")["replaced"] == 2
    monkeypatch.setattr("headrace.cli.loading._MOST_KEYS", 1)
    again = tmp_path / "again.csv"
    again.write_text(ROWS)
    assert main(["load", rows, str(again), "-t", "t", "-s", store]) == 0
    assert "At least 2 of them replaced rows" in capsys.readouterr().out


def test_a_text_for_missing_values_is_named(run: Run, tmp_path: Path, store: str, capsys: Any) -> None:
    file = tmp_path / "weather.csv"
    file.write_text('id,temp,name\n1,2.5,"NA"\n2,NA,NA\n')
    assert main(["load", str(file), "-t", "texts", "-k", "id", "-s", store]) == 0
    assert "column temp becomes a string because of 'NA'; with --null NA it is a double" in capsys.readouterr().err
    run("load", str(file), "-t", "numbers", "-k", "id", "--null", "NA")
    # In quotes, it is a text.
    assert run("table", "scan", "numbers") == [
        {"id": 1, "temp": 2.5, "name": "NA"},
        {"id": 2, "temp": None, "name": None},
    ]
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"id": 1}\n')
    assert (
        "--null is for CSV"
        in run("load", str(lines), "-t", "u", "-k", "id", "--null", "NA", code=1)["error"]["message"]
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", 'id,temp,day\n\n1,"1.5",2026-01-01\n\n2,NA,2026-01-01\n', "line 5, column 'temp' for double"),
        ("x.csv", 'note,id,temp\n"a\nb",1,1\nc,2,NA\n', "line 4, column 'temp' for double"),
        ("x.csv", "id,day\n1,2026-01-01\n2,2026-13-01\n", "line 3, column 'day', value '2026-13-01' for date"),
        ("x.csv", "id,temp\n1,1\n,2\n", "line 3, column 'id': it has no value, and the column cannot be null"),
        ("x.csv", "id,temp\n1,1\n1,2,3\n", "line 3: Expected 2 columns, got 3"),
        ("x.jsonl", '{"id": 1}\n\n{"id": 2, "day": "x"}\n', "line 3, column 'day', value 'x' for date"),
        ("x.jsonl", '{"id": 1}\n\n{"id": null}\n', "line 3, column 'id': it has no value"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_value_that_does_not_fit_is_found(
    run: Run, tmp_path: Path, name: str, content: str, message: str, packed: bool
) -> None:
    file = tmp_path / (name + ".gz" if packed else name)
    file.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    run("table", "create", "t", "-c", "id=long", "-c", "temp=double", "-c", "day=date", "-c", "note=string", "-k", "id")
    assert message in run("load", str(file), "-t", "t", code=1)["error"]["message"]
    assert message in run("table", "put", "t", str(file), code=1)["error"]["message"]


def test_a_value_of_standard_input_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("table", "create", "t", "-c", "id=long", "-k", "id")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"id\n1\nx\n"))))
    failed = run("load", "-", "-t", "t", "--format", "csv", code=1)
    assert "row 2, column 'id' for long: invalid value 'x'" in failed["error"]["message"]


def test_a_load_that_fails_leaves_no_empty_table(run: Run, tmp_path: Path, store: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text("id,temp\n1,1.5\n2,NA\n")
    error = run("load", str(file), "-t", "t", "-k", "id", "-c", "temp=double", code=1)
    assert "line 3, column 'temp'" in error["error"]["message"]
    assert error["error"]["remedy"] == "if NA means that there is no value, give --null NA"
    run("load", str(file), "-q", "q", "-c", "temp=double", code=1)
    with headrace.open(store) as opened:
        assert (opened.tables(), opened.queues()) == ([], [])
    assert run("load", str(file), "-t", "t", "-k", "id", "-c", "temp=double", "--null", "NA")["created"]


def test_a_failed_load_keeps_a_table_that_was_there_or_has_rows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.loading._WRITE_BYTES", 1)
    good, bad = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    good.write_text('{"id": 1}\n')
    bad.write_text('{"id": "two"}\n')
    run("load", str(good), str(bad), "-t", "t", "-k", "id", code=1)
    assert run("table", "list")[0]["rows"] == 1
    run("table", "create", "empty", "-c", "id=long", "-k", "id")
    run("load", str(bad), "-t", "empty", code=1)
    assert run("table", "describe", "empty")["rows"] == 0


@pytest.mark.parametrize("arguments", [[], ["--format", "csv"]])
def test_files_that_are_no_text_are_named(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    archive, wide = tmp_path / "my rows.zip", tmp_path / "wide.csv"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("rows.csv", ROWS)
    wide.write_text(ROWS, encoding="utf-16")
    failed = run("load", str(archive), "-t", "t", "-k", "a", *arguments, code=1)
    assert "a ZIP archive" in failed["error"]["message"]
    assert f"unzip -p '{archive}' | headrace load -" in failed["error"]["remedy"]
    assert "UTF-16" in run("load", str(wide), "-t", "t", "-k", "a", *arguments, code=1)["error"]["message"]
    narrow = tmp_path / "my names.csv"
    narrow.write_bytes("id,name\n1,Müller\n".encode("latin1"))
    run("table", "create", "names", "-c", "id=long,name=string", "-k", "id")
    for table in ("names", "new"):
        failed = run("load", str(narrow), "-t", table, "-k", "id", *arguments, code=1)
        assert f"iconv -f LATIN1 -t UTF-8 '{narrow}' | headrace load - --format csv" in failed["error"]["remedy"]
