"""Values of new tables are those of the file: types are inferred that change none, and CSV has its usual variants."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli import file_columns
from headrace.cli.main import main
from headrace.model.types import type_name

Run = Callable[..., Any]


def _loaded(run: Run, path: Path, content: str | bytes) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Load a file into a new table with the key ``id``; return the types of its columns, and its rows."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    run("load", str(path), "-t", path.stem, "-k", "id")
    with headrace.open(str(path.parent / "shop")) as store:
        table = store.table(path.stem)
        types = {column.name: type_name(column.type) for column in table.schema.columns}
        return types, table.scan().read_all().to_pylist()


@pytest.fixture
def file(tmp_path: Path, store: str) -> Path:
    assert store == str(tmp_path / "shop")
    return tmp_path / "rows.csv"


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        # Postcodes, account numbers, telephone numbers, hexadecimal numbers.
        (["007", "123"], "string"),
        (["-01", "5"], "string"),
        (["00.50", "1.5"], "string"),
        (["+4930123456", "+1"], "string"),
        (["0x1F", "5"], "string"),
        # No numbers for every reader.
        (["1_000", "5"], "string"),
        (["1e400", "5"], "string"),
        (["1e-400", "5"], "string"),
        (["01/02/2003", "13/02/2003"], "string"),
        (["true", "yes"], "string"),
        (["12:30", "25:00"], "string"),
        (["2003-01-02T03:04:05.123456789", "2003-01-02T03:04:05.5"], "string"),
        (["123456789012345678901234567890123456789", "5"], "string"),
        (["1e300", "12345678901234567890"], "string"),
        # Digits that a double does not have.
        (["12345678901234567890", "5"], "decimal(38,0)"),
        (["9007199254740993", "0.5"], "decimal(38,1)"),
        (["12345678901234.567", "0.25"], "decimal(38,3)"),
        (["1.2345678901234567891", "1e2", "-.5"], "decimal(38,19)"),
        (["0", "-7", " 12 ", "9223372036854775807"], "long"),
        (["0", "0.5", "+1.5", "-0.25", "1.10", ".5", "1e5", "0.30000000000000004", "1.000000000000000000"], "double"),
        (["inf", "nan", "1.5"], "double"),
        (["true", "FALSE"], "boolean"),
        (["2003-01-02T03:04:05.123456"], "timestamp_ntz"),
    ],
)
def test_the_type_of_a_column_keeps_its_values(run: Run, file: Path, texts: list[str], kind: str) -> None:
    content = "id,v\n" + "".join(f"{number},{text}\n" for number, text in enumerate(texts))
    types, rows = _loaded(run, file, content)
    assert types == {"id": "long", "v": kind}
    if kind == "string":
        assert [row["v"] for row in rows] == texts
    elif kind in ("long", "double"):
        assert [str(row["v"]) for row in rows] == [str((int if kind == "long" else float)(text)) for text in texts]
    elif kind.startswith("decimal"):
        assert [row["v"].compare(row["v"].__class__(text)) for row, text in zip(rows, texts, strict=True)] == [0] * len(
            texts
        )


def test_a_wider_type_is_a_warning_with_its_option(run: Run, file: Path, store: str, capsys: Any) -> None:
    file.write_text("id,zip,price,at\n1,00501,1.2345678901234567891,2003-01-02T03:04:05.123456789\n")
    assert main(["load", str(file), "-t", "t", "-k", "id", "-s", store]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "column zip becomes a string: a long would change '00501'; with --column zip=long it is a long" in shown
    assert "column price becomes a decimal(38,19): a double would change '1.2345678901234567891'" in shown
    assert "column at becomes a string: a timestamp would change '2003-01-02T03:04:05.123456789'" in shown
    assert "--column at" not in shown
    given = main(["load", str(file), "-t", "u", "-k", "id", "-c", "zip=long,price=double,at=string", "-s", store])
    assert (given, capsys.readouterr().err) == (0, "")


@pytest.mark.parametrize(
    ("name", "first", "last", "message"),
    [
        ("x.csv", "id,v\n1,5\n", "2,007\n", "line 3, column 'v', value '007' for long: it would be changed"),
        ("x.csv", "id,v\n1,0.5\n", "2,1e400\n", "line 3, column 'v', value '1e400' for double"),
        ("x.csv", "id,v\n1,0.5\n", "2,12345678901234567890\n", "line 3, column 'v', value '12345678901234567890'"),
        ("x.jsonl", '{"id": 1, "v": 0.5}\n', '{"id": 2, "v": 12345678901234567890}\n', "line 2, column 'v', value 123"),
        ("x.jsonl", '{"id": 1, "v": 0.5}\n', '{"id": 2, "v": 1e-400}\n', "line 2, column 'v', value 1e-400: a double"),
        ("x.jsonl", '{"id": 1, "v": [{"w": 0.5}]}\n', '{"id": 2, "v": [{"w": 1.2345678901234567891}]}\n', "line 2, "),
    ],
)
def test_a_later_value_that_the_type_would_change_is_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: str, last: str, message: str
) -> None:
    monkeypatch.setattr(file_columns, "SAMPLE_BYTES", len(first) + 1)
    path = tmp_path / name
    path.write_text(first + last)
    error = run("load", str(path), "-t", "t", "-k", "id", code=1)["error"]
    assert message in error["message"]
    assert error["remedy"] == "give the type of the column with --column"
    assert run("table", "list") == []
    run("table", "create", "t", "-c", "id=long,v=string" if "[" in last else "id=long,v=double", "-k", "id")
    assert run("load", str(path), "-t", "t", code=1 if "[" in last else 0)


def test_numbers_of_json_that_a_double_keeps_are_loaded(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    values = [0.1, 0.30000000000000004, 1e300, -5e-324, 2.0, 1e22]
    path.write_text("".join(json.dumps({"id": number, "v": value}) + "\n" for number, value in enumerate(values)))
    run("load", str(path), "-t", "t", "-k", "id")
    assert [row["v"] for row in run("table", "scan", "t")] == values


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", 'id;note\n1;a, b\n2;"c; d"\n'),
        ("x.csv", "id\tnote\r\n1\ta, b\r\n2\tc; d\r\n"),
        ("x.tsv", "id\tnote\n1\ta, b\n2\tc; d\n"),
        ("x.csv", "id|note\n1|a, b\n2|c; d\n"),
        ("x.csv", '\ufeffid,note\n1,"a, b"\n2,c; d\n'),
        ("x.csv", 'id,note\r1,"a, b"\r2,c; d\r'),
    ],
)
def test_the_separator_of_csv_is_that_of_its_header(run: Run, file: Path, name: str, content: str) -> None:
    expected = [{"id": 1, "note": "a, b"}, {"id": 2, "note": "c; d"}]
    assert _loaded(run, file.with_name(name), content) == ({"id": "long", "note": "string"}, expected)
    run("table", "put", "x", str(file.with_name(name)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,a,a\n1,2,3\n", "columns 2 and 3 of the file have the same name"),
        (",id\n0,1\n", "column 1 of the file has no name"),
        ("id,a,b\n1,2,3\n4,5\n", "line 3: Expected 3 columns, got 2: 4,5"),
        ('id;a;b\n1;"2\n";3\n4;5\n', "line 4: Expected 3 columns, got 2: 4;5"),
        ('id,a\n1,x\n2,"y\n3,z\n', "line 3, value 'y\\n3,z\\n': its quote is not closed"),
        ('id,a\n1,"y\n3,z', "line 2, value 'y\\n3,z': its quote is not closed"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_with_its_place(run: Run, file: Path, content: str, message: str) -> None:
    file.write_text(content)
    assert message in run("load", str(file), "-t", "t", "-k", "id", code=1)["error"]["message"]
    assert run("table", "list") == []


def test_a_query_with_batches_of_one_row_prints_one_table(run: Run, file: Path, store: str, capsys: Any) -> None:
    _loaded(run, file, "id,v\n" + "".join(f"{number},{number % 9}\n" for number in range(100)))
    assert main(["query", "SELECT v, count(*) FROM rows GROUP BY v", "-s", store]) == 0
    assert capsys.readouterr().out.count("count_star()") == 1


def test_a_missing_file_creates_no_store(run: Run, file: Path, store: str) -> None:
    assert "No such file" in run("load", str(file), "-t", "t", "-k", "id", code=1)["error"]["message"]
    assert not Path(store).exists()


def test_an_export_with_tabs_can_be_loaded_again(run: Run, file: Path) -> None:
    rows = _loaded(run, file, 'id,a,b\n1,"x\ty",007\n2,"",+1\n')[1]
    run("export", "rows", str(file.with_name("tabs.tsv.gz")))
    run("load", str(file.with_name("tabs.tsv.gz")), "-t", "tabs", "-k", "id")
    assert run("table", "scan", "tabs") == rows
    run("export", "rows", str(file.with_name("plain.tsv")))
    assert file.with_name("plain.tsv").read_text().startswith('"id"\t"a"\t"b"\n1\t')


def test_a_last_value_can_have_several_lines(run: Run, file: Path) -> None:
    rows = _loaded(run, file, 'id,a\n1,"x\ny"\n2,"z\n\n"\n')[1]
    assert [row["a"] for row in rows] == ["x\ny", "z\n\n"]
