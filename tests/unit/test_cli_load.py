"""Files into tables and queues, and back: ``load``, ``export`` and ``query``."""

from __future__ import annotations

import bz2
import datetime
import decimal
import gzip
import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.cli.conditions import parse_condition
from headrace.cli.file_columns import infer_columns
from headrace.cli.file_formats import format_of, open_input, open_output, paths_of
from headrace.cli.loading import Loading
from headrace.cli.main import main
from headrace.cli.output import ConsoleOutput
from headrace.cli.row_files import TextRules, read_rows
from headrace.cli.row_writing import write_rows
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.schema import RowSchema, TableSchema, columns_of
from headrace.model.types import type_name
from headrace.testing.effort import thorough
from tests.unit.type_strategies import LEAVES, TYPE_NAMES, values_of

Run = Callable[..., Any]

FLIGHTS = 'id,carrier,delay,at,note\n1,UA,2.5,2026-01-02 03:04:05,"two\nlines"\n2,,,2026-07-02 03:04:05,""\n'


@pytest.fixture
def flights(tmp_path: Path) -> str:
    file = tmp_path / "flights.csv"
    file.write_text(FLIGHTS)
    return str(file)


def lines(run: Run, *arguments: str) -> list[dict[str, Any]]:
    """Return the lines that a command prints."""
    found: Any = run(*arguments)
    return found if isinstance(found, list) else [found]


def columns(run: Run, kind: str, name: str) -> dict[str, str]:
    return {column["column"]: column["type"] for column in run(kind, "describe", name)["columns"]}


def test_a_table_is_created_with_the_columns_of_a_file(run: Run, flights: str) -> None:
    loaded = run("load", flights, "--table", "flights", "--key", "id")
    assert loaded == {"table": "flights", "rows": 2, "files": 1, "created": True, "replaced": 0}
    assert columns(run, "table", "flights") == {
        "id": "long", "carrier": "string", "delay": "double", "at": "timestamp_ntz", "note": "string",
    }  # fmt: skip
    first, second = lines(run, "table", "scan", "flights")
    assert first["note"] == "two\nlines"
    assert (second["carrier"], second["note"], second["delay"]) == (None, "", None)
    assert run("load", flights, "--table", "flights") == {
        "table": "flights", "rows": 2, "files": 1, "created": False, "replaced": 0,
    }  # fmt: skip


def test_types_and_a_time_zone_are_given_for_new_columns(run: Run, flights: str) -> None:
    run("load", flights, "-t", "flights", "-k", "id", "-c", "delay=decimal(10,2)", "--timezone", "Europe/Berlin")
    assert columns(run, "table", "flights")["delay"] == "decimal(10,2)"
    assert [row["at"] for row in lines(run, "table", "scan", "flights")] == [
        "2026-01-02T02:04:05+00:00",
        "2026-07-02T01:04:05+00:00",
    ]


def test_a_queue_is_created_and_gets_the_rows_of_several_files_in_order(run: Run, tmp_path: Path) -> None:
    for day in (2, 1):
        with gzip.open(tmp_path / f"day-{day}.jsonl.gz", "wt") as file:
            file.write(f'{{"day": {day}, "tags": ["a", "b"], "by": {{"name": "x"}}}}\n')
    (tmp_path / "day-3.jsonl").write_text('{"day": 3}\n')
    loaded = run("load", str(tmp_path / "day-*"), "--queue", "days", "--partitions", "2")
    assert loaded == {"queue": "days", "rows": 3, "files": 3, "created": True}
    assert columns(run, "queue", "days")["by"] == "struct<name:string>"
    assert [row["day"] for row in lines(run, "queue", "read", "days")] == [1, 2, 3]


def test_the_key_of_a_queue_chooses_the_partition_of_a_row(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("user,n\n" + "".join(f"u{n % 5},{n}\n" for n in range(100)))
    run("load", str(file), "--queue", "clicks", "--key", "user", "--partitions", "3")
    rows = lines(run, "queue", "read", "clicks")
    assert len({row["$tablet_index"] for row in rows}) > 1
    assert len({(row["user"], row["$tablet_index"]) for row in rows}) == 5


def test_standard_input_is_read_once_also_when_columns_are_inferred(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.RawIOBase):
        """An input that cannot go back."""

        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._data.readinto(buffer)

    data = "".join(json.dumps({"id": n, "name": "x" * 100}) + "\n" for n in range(5000)).encode()
    for name, contents in (("plain", data), ("packed", bz2.compress(data))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Pipe(contents))))
        assert run("load", "-", "-t", name, "-k", "id")["rows"] == 5000
    table = pa.table({"id": pa.array(range(10)), "at": pa.array(range(0, 10_000, 1000), pa.timestamp("ns"))})
    written = io.BytesIO()
    pyarrow.parquet.write_table(table, written)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Pipe(written.getvalue()))))
    assert run("load", "-", "-t", "parquet", "-k", "id")["rows"] == 10


def test_an_error_in_the_middle_tells_how_to_go_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: str
) -> None:
    monkeypatch.setattr("headrace.cli.loading._WRITE_BYTES", 1)
    good, bad = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    good.write_text('{"id": 1}\n{"id": 2}\n')
    bad.write_text('{"id": "three"}\n')
    run("queue", "create", "numbers", "-c", "id=long")
    assert main(["load", str(good), str(bad), "--queue", "numbers", "-s", store]) == 1
    error = capsys.readouterr().err
    assert "line 1, column 'id', value \"three\"" in error
    assert "rows 1 to 2 were written before; --skip 2 continues after them" in error
    bad.write_text('{"id": 3}\n')
    assert run("load", str(good), str(bad), "--queue", "numbers", "--skip", "2")["rows"] == 1
    assert [row["id"] for row in lines(run, "queue", "read", "numbers")] == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-t", "new"], "give --key with its primary key"),
        (["-t", "new", "-k", "ID"], "did you mean id"),
        (["-t", "new", "-k", "id", "-c", "dela=long"], "did you mean delay"),
        (["-t", "t", "-c", "id=long"], "leave out --column"),
        (["-t", "t", "-k", "n"], "another primary key"),
        (["-t", "t", "-q", "q"], "valid: --table or --queue"),
        ([], "valid: --table or --queue"),
        (["-t", "t", "--timezone", "Europe/Berlni"], "did you mean Europe/Berlin"),
        (["-t", "t"], "no such column"),
    ],
)
def test_a_load_that_cannot_work_says_why(
    run: Run, flights: str, store: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("table", "create", "t", "-c", "id=long", "-c", "n=long", "-k", "id")
    assert main(["load", flights, *arguments, "-s", store]) == 1
    error = capsys.readouterr().err
    assert message in error or ("cannot read the rows" in error and message == "no column")
    assert "new" not in run("table", "list")[0]["name"]


def test_timestamps_without_a_zone_need_the_option(
    run: Run, flights: str, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("table", "create", "f", "-c", "id=long", "-c", "carrier=string", "-c", "delay=double", "-c", "at=timestamp",
        "-c", "note=string", "-k", "id")  # fmt: skip
    assert main(["load", flights, "-t", "f", "-s", store]) == 1
    assert "--timezone" in capsys.readouterr().err
    assert run("load", flights, "-t", "f", "--timezone", "UTC")["rows"] == 2


def test_times_that_the_clock_skips_or_repeats_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    schema = TableSchema.of({"id": "long", "at": "timestamp"}, "id")
    for text in ("2026-03-29 02:30:00", "2026-10-25 02:30:00"):
        file.write_text(f"id,at\n1,{text}\n")
        with pytest.raises(SchemaError, match="in timezone 'Europe/Berlin'"):
            list(read_rows(str(file), None, schema, TextRules("Europe/Berlin")))
    file.write_text("id,at\n1,2026-10-25 02:30:00+01:00\n2,2026-10-25T00:30:00Z\n3,2026-10-25 00:30:00\n4,\n")
    (batch,) = read_rows(str(file), None, schema, TextRules("Europe/Berlin"))
    found = [value and value.isoformat() for value in batch.column("at").to_pylist()]
    assert found == ["2026-10-25T01:30:00+00:00", "2026-10-25T00:30:00+00:00", "2026-10-24T22:30:00+00:00", None]


def test_dates_and_times_in_json_are_recognised(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    row = {"day": "2026-01-02", "local": "2026-01-02 03:04", "at": "2026-01-02T03:04:05.678+01:00", "text": "2026-01"}
    file.write_text(json.dumps(row) + "\n" + json.dumps(dict.fromkeys(row)) + "\n")
    with open_input(str(file)) as source:
        found = infer_columns(source, "jsonl").schema
    assert {column.name: type_name(column.type) for column in found.columns} == {
        "day": "date", "local": "timestamp_ntz", "at": "timestamp", "text": "string",
    }  # fmt: skip
    (batch,) = read_rows(str(file), None, found)
    assert batch.column("at")[0].as_py() == datetime.datetime(2026, 1, 2, 2, 4, 5, 678000, datetime.UTC)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "arrow", "arrows", "csv.gz", "jsonl.zst", "arrow.bz2"])
def test_an_exported_table_can_be_loaded_again(run: Run, flights: str, tmp_path: Path, suffix: str) -> None:
    run("load", flights, "-t", "flights", "-k", "id", "--timezone", "UTC")
    file = tmp_path / f"out.{suffix}"
    assert run("export", "flights", str(file))["rows"] == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    run("load", str(file), "-t", "again", "-k", "id")
    assert lines(run, "table", "scan", "again") == lines(run, "table", "scan", "flights")
    assert columns(run, "table", "again") == columns(run, "table", "flights")


def test_some_rows_and_columns_are_exported(run: Run, flights: str, tmp_path: Path, store: str) -> None:
    run("load", flights, "-t", "flights", "-k", "id")
    run("load", flights, "-q", "log")
    file = tmp_path / "out.csv"
    run("export", "flights", str(file), "--where", "id > 1", "--columns", "id,note")
    assert file.read_text() == '"id","note"\n2,""\n'
    run("export", "log", str(file), "--columns", "id", "--limit", "1")
    assert file.read_text() == '"id"\n1\n'
    assert main(["export", "log", str(file), "--where", "id > 1", "-s", store]) == 1


def test_an_export_that_fails_leaves_the_old_file(run: Run, tmp_path: Path, store: str) -> None:
    run("table", "create", "t", "-c", "id=long", "-c", "tags=array<string>", "-k", "id")
    file = tmp_path / "out.csv"
    file.write_text("old")
    assert main(["export", "t", str(file), "-s", store]) == 1
    assert [path.read_text() for path in tmp_path.glob("out*")] == ["old"]
    assert list(tmp_path.glob(".*")) == []


def test_exports_go_to_standard_output(flights: str, store: str, capfdbinary: Any) -> None:
    assert main(["load", flights, "-t", "flights", "-k", "id", "-s", store]) == 0
    capfdbinary.readouterr()
    assert main(["export", "flights", "-c", "id", "-s", store]) == 0
    assert capfdbinary.readouterr().out == b'{"id":1}\n{"id":2}\n'
    assert main(["query", "SELECT sum(id) AS n, 'x' AS x FROM flights", "-f", "csv", "-s", store]) == 0
    assert capfdbinary.readouterr().out == b'"n","x"\n3,"x"\n'


def test_a_query_prints_its_rows(run: Run, flights: str, tmp_path: Path, store: str, capsys: Any) -> None:
    run("load", flights, "-t", "flights", "-k", "id")
    assert lines(run, "query", "SELECT id FROM flights ORDER BY id DESC") == [{"id": 2}, {"id": 1}]
    assert lines(run, "query", "SELECT id FROM flights", "-n", "1") == [{"id": 1}]
    assert lines(run, "query", "SELECT a.id, b.id FROM flights a JOIN flights b USING (id) LIMIT 1") == [
        {"id": 1, "id_1": 1}
    ]
    # Python has no such date.
    ((late,),) = (row.values() for row in lines(run, "query", "SELECT DATE '290000-01-01'"))
    assert "out of range" in late
    file = tmp_path / "out.parquet"
    assert run("query", "FROM flights", "-o", str(file)) == {"file": str(file), "rows": 2}
    assert pyarrow.parquet.read_table(file).num_rows == 2
    assert main(["query", "SELECT * FROM flight", "-s", store]) == 1
    assert "did you mean flights" in capsys.readouterr().err


def test_an_interrupted_load_says_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n')
    err = io.StringIO()
    loading = Loading(ConsoleOutput(io.StringIO(), err), "Loading t", [str(file)], TableSchema.of({"id": "long"}, "id"))

    def interrupt(_: pa.Table) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loading.write(interrupt)
    assert err.getvalue() == "warning: no row was written\n"


def test_patterns_are_expanded_in_order(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "[x].csv"):
        (tmp_path / name).touch()
    assert [Path(path).name for path in paths_of([str(tmp_path / "?.csv"), "-", str(tmp_path / "[x].csv")])] == [
        "a.csv", "b.csv", "-", "[x].csv",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="no file matches"):
        paths_of([str(tmp_path / "*.json")])
    with pytest.raises(OptionError, match="given twice"):
        paths_of([str(tmp_path / "a.csv"), str(tmp_path / "?.csv")])


@pytest.mark.parametrize(
    ("path", "beginning", "expected"),
    [
        ("a.csv", b"", "csv"),
        ("a.JSON.gz", b"", "jsonl"),
        ("a.feather", b"", "arrow"),
        ("-", b'{"a": 1}', "jsonl"),
        ("-", b"PAR1....", "parquet"),
        ("data", b"ARROW1..", "arrow"),
        ("-", b"\xff\xff\xff\xff....", "arrow"),
    ],
)
def test_the_format_of_a_file_is_recognised(path: str, beginning: bytes, expected: str) -> None:
    assert format_of(path, beginning=beginning) == expected


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (1, pa.uint8(), "short"),
        (1, pa.uint32(), "long"),
        (1, pa.uint64(), "decimal(20,0)"),
        (datetime.time(1, 2), pa.time64("us"), "string"),
        (None, pa.null(), "string"),
        ("x", pa.dictionary(pa.int8(), pa.string()), "string"),
        ([None], pa.list_(pa.null()), "array<string>"),
        (datetime.datetime(2026, 1, 2), pa.timestamp("ns"), "timestamp_ntz"),
        (decimal.Decimal(1), pa.decimal128(5, 2), "decimal(5,2)"),
    ],
)
def test_types_that_no_column_can_have_become_the_nearest_ones(
    tmp_path: Path, value: Any, data_type: pa.DataType, expected: str
) -> None:
    file = tmp_path / "x.arrow"
    table = pa.table({"x": pa.array([value], data_type)})
    with pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with open_input(str(file)) as source:
        found = infer_columns(source, "arrow").schema
    assert [type_name(column.type) for column in found.columns] == [expected]
    assert sum(batch.num_rows for batch in read_rows(str(file), None, found)) == 1


def _with_wrong_offsets() -> bytes:
    """Return an Arrow file with a text that ends before it begins."""
    offsets, text = (pa.py_buffer(data) for data in (struct.pack("3i", 0, 5, 2), b"abcde"))
    batch = pa.record_batch(
        [pa.array([1, 2]), pa.Array.from_buffers(pa.string(), 2, [None, offsets, text])], ["id", "s"]
    )
    file = io.BytesIO()
    with pyarrow.ipc.new_stream(file, batch.schema) as writer:
        writer.write_batch(batch)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", b"i\xffd,n\n1,2\n"),
        ("x.csv.gz", gzip.compress(b"id\n" + bytes(range(256)))[:-20]),
        ("x.csv.gz", b"\x1f\x8b" + b"\0" * 20),
        ("x.jsonl", b'{"id": 1'),
        # Arrow's reader ends the process.
        ("x.jsonl", b'null\n{"id": 1}\n'),
        ("x.jsonl", b'{"id": 1}\n null'),
        ("x.arrow", b"ARROW1\0\0" + b"\xff" * 30),
        ("x.arrow", b"\xff\xff\xff\xff\x40"),
        ("x.arrow", _with_wrong_offsets()),
        ("x.parquet", b"PAR1" + b"\0" * 30 + b"PAR1"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_so(
    tmp_path: Path, store: str, name: str, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    # Into a new table, and into an existing one.
    assert main(["load", str(file), "-t", "t", "-k", "id", "-s", store]) == 1
    new = capsys.readouterr().err
    main(["table", "create", "t", "-c", "id=long", "-k", "id", "-s", store, "--if-not-exists"])
    assert main(["load", str(file), "-t", "t", "-s", store]) == 1
    existing = capsys.readouterr().err
    assert "cannot read" in new
    assert "--debug" not in new + existing


def test_binary_values_are_only_base64(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    schema = TableSchema.of({"id": "long", "data": "binary"}, "id")
    for text in ("é", "A", "A=A="):
        file.write_text(f"id,data\n1,{text}\n")
        with pytest.raises(SchemaError, match="cannot read the rows"):
            list(read_rows(str(file), None, schema))
        with pytest.raises(SchemaError, match="does not fit its type"):
            parse_condition(f"data = {text}", schema)


def test_columns_are_inferred_from_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.file_columns.SAMPLE_BYTES", 100)
    file = tmp_path / "x.csv"
    file.write_text("a,b\n" + '1,"x\n,y"\n' * 50)
    with open_input(str(file)) as source:
        assert infer_columns(source, "csv").schema.names == ("a", "b")
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"a": 1, "b": "xxxxxxxx"}\n' * 50)
    with open_input(str(lines)) as source:
        assert infer_columns(source, "jsonl").schema.names == ("a", "b")
    lines.write_text("")
    with open_input(str(lines)) as source, pytest.raises(SchemaError, match="no columns"):
        infer_columns(source, "jsonl")


@st.composite
def tables(draw: st.DrawFn, types: st.SearchStrategy[str]) -> pa.Table:
    """Tables of a few columns and rows."""
    schema = TableSchema.of(
        {"id": "long", **{f"c{n}": name for n, name in enumerate(draw(st.lists(types, max_size=4)))}}, "id"
    )
    fields = list(schema.arrow)
    rows = draw(st.integers(0, 5))
    columns = [
        pa.array(
            [draw(st.one_of(st.none(), values_of(field.type))) if field.name != "id" else n for n in range(rows)],
            field.type,
        )
        for field in fields
    ]
    return pa.Table.from_arrays(columns, schema=schema.arrow)


def _written_and_read(directory: Path, name: str, rows: pa.Table) -> list[dict[str, Any]]:
    path = str(directory / name)
    with open_output(path) as file:
        assert write_rows(file, path, format_of(path), rows.schema, rows.to_batches(max_chunksize=2)) == rows.num_rows
    schema = RowSchema(columns_of(rows.schema))
    return [row for batch in read_rows(path, None, schema) for row in batch.to_pylist()]


def _complete(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """Return rows with the columns that a batch of JSON does not have because they are null."""
    return [{name: row.get(name) for name in names} for row in rows]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=thorough(120))
@given(data=st.data())
def test_rows_of_any_type_survive_export_and_load(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["x.jsonl", "x.parquet", "x.arrow", "x.arrows.zst", "x.jsonl.gz"]))
    rows = data.draw(tables(TYPE_NAMES))
    assert _complete(_written_and_read(tmp_path, name, rows), rows.column_names) == rows.to_pylist()


PLAIN_TYPES = st.sampled_from(sorted(set(LEAVES) - {"interval day to second"}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=thorough(120))
@given(rows=tables(PLAIN_TYPES), name=st.sampled_from(["x.csv", "x.csv.gz"]))
def test_rows_survive_export_and_load_as_csv(tmp_path: Path, rows: pa.Table, name: str) -> None:
    assert _written_and_read(tmp_path, name, rows) == rows.to_pylist()


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("imports") / "store"
    with headrace.open(path, create=True) as store:
        store.create_table("t", {"id": "long"}, "id").put([{"id": 1}])
        store.create_queue("q", {"id": "long"}).append([{"id": 1}])
    return str(path)


def test_commands_without_spark_import_neither_pandas_nor_pyspark(small_store: str) -> None:
    commands = [
        ["table", "list"],
        ["table", "head", "t"],
        ["table", "put", "t", "/dev/null", "--format", "jsonl"],
        ["queue", "list"],
        ["queue", "describe", "q"],
        ["queue", "read", "q"],
        ["tunnel", "list"],
        ["consumer", "list"],
        ["table", "checksum", "t"],
        ["export", "t"],
        ["query", "SELECT * FROM t"],
    ]
    code = (
        "import json, sys\n"
        "import headrace.cli.main as program\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        f"    sys.argv = ['headrace', *arguments, '-s', {small_store!r}]\n"
        "    assert program.main() == 0, arguments\n"
        # A query runs in a process of its own.
        "    heavy = {'pyspark', 'pandas', 'py4j', 'psycopg', 'yt', 'google.protobuf', 'uvicorn', 'duckdb'}\n"
        "    assert not heavy & set(sys.modules), (arguments, heavy & set(sys.modules))\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(commands)], check=True, stdout=subprocess.DEVNULL)
