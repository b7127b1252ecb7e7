"""Files with rows, as ``headrace load`` reads them: columns are inferred, and rows get the types of a table."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from headrace.cli.file_columns import infer_columns
from headrace.cli.file_formats import format_of, open_input
from headrace.cli.row_files import TextRules, rows_of
from headrace.errors import HeadraceError
from headrace.model.tables.schema import TableSchema
from headrace.rows.from_user import to_arrow
from tests.chaos.fuzz import mutations
from tests.chaos.fuzz.targets import Target, accepts

_SCHEMA = TableSchema.of(
    {"id": "long", "price": "double", "note": "string", "data": "binary", "d": "date", "t": "timestamp"}
    | {"n": "decimal(10,2)", "b": "boolean"},
    ["id"],
)
_NESTED = TableSchema.of(
    {"id": "long", "l": "array<int>", "s": "struct<a:string,b:double>", "m": "map<string,long>"}, ["id"]
)
_CSV = [
    b'id,price,note,data,d,t,n,b\n1,1.5,"a ""b"", c",AAE=,2026-01-31,2026-01-31T12:00:00Z,1.25,true\n2,,,,,,,\n',
    b'id,note\r\n1,x\r\n2,"two\r\nlines"\r\n-9223372036854775808,\xc3\xa9\r\n',
    b"id,t,d\n1,2026-01-31 12:00:00.123456+01:00,9999-12-31\n",
]
_JSON = [
    b'{"id": 1, "price": 1.5, "note": "a\\u00e9", "data": "AAE=", "d": "2026-01-31", "b": true}\n{"id": 2}\n',
    b'{"id": 1, "t": "2026-01-31T12:00:00Z", "n": 1.25}\n\n{"id": 2, "t": null, "n": "1e2"}\n',
    b'{"id": 1, "l": [1, null], "s": {"a": "x", "b": 1e300}, "m": {"k": 5}}\n{"id": 2, "l": [], "s": null, "m": {}}\n',
]
_ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3]),
        "note": pa.array(["a", None, "é"]),
        "data": pa.array([b"\xff", b"", None]),
        "t": pa.array([0, 10**15, None]).cast(pa.timestamp("us", "UTC")),
        "l": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "s": pa.array([{"a": "x", "b": 1.5}, None, {"a": None, "b": None}]),
        "k": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
)


def _parquet(compression: str) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(_ROWS, file, compression=compression)
    return file.getvalue()


def _arrow(*, stream: bool, compression: str | None = None) -> bytes:
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(file, _ROWS.schema, options=options) as writer:
        writer.write_table(_ROWS)
    return file.getvalue()


def _compressed(data: bytes, compression: str) -> bytes:
    file = io.BytesIO()
    with pa.CompressedOutputStream(pa.PythonFile(file, mode="w"), compression) as stream:
        stream.write(data)
        stream.flush()
        found = file.getvalue()
    return found


def _reads(file_format: str) -> Callable[[], Iterator[Callable[[bytes], bool]]]:
    def opened() -> Iterator[Callable[[bytes], bool]]:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            path = Path(directory) / "rows"

            def infer() -> None:
                with open_input(str(path)) as source:
                    assert format_of("-", file_format, beginning=source.beginning(8)) == file_format
                    columns = infer_columns(source, file_format).schema.arrow
                _read(columns)

            def _read(columns: pa.Schema) -> None:
                schema = TableSchema.of(columns, columns.names[:1])
                with open_input(str(path)) as source:
                    for batch in rows_of(source, file_format, schema, TextRules("Europe/Berlin")):
                        to_arrow(pa.Table.from_batches([batch]), schema, columns="all")

            def call(data: bytes) -> bool:
                path.write_bytes(data)
                readers = (infer, lambda: _read(_SCHEMA.arrow), lambda: _read(_NESTED.arrow))
                return sum(accepts(reader, HeadraceError) for reader in readers) > 0

            yield call

    return opened


def _target(file_format: str, samples: list[bytes]) -> Target:
    return Target((), lambda chance: mutations.changed(chance, samples), contextmanager(_reads(file_format)))


FILES: dict[str, Target] = {
    "CSV files": _target("csv", [*_CSV, *_CSV, _compressed(_CSV[0], "gzip"), _compressed(_CSV[0], "zstd")]),
    "JSON files": _target("jsonl", [*_JSON, *_JSON, _compressed(_JSON[0], "bz2"), _compressed(_JSON[2], "lz4")]),
    "Parquet files": _target("parquet", [_parquet("none"), _parquet("snappy")]),
    "Arrow files": _target(
        "arrow", [_arrow(stream=False), _arrow(stream=True), _arrow(stream=True, compression="zstd")]
    ),
}
