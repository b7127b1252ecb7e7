"""The parsers that get random inputs, each with its valid inputs and the errors that it documents."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.cli.conditions import parse_condition
from headrace.cli.prompt_commands import parse_command
from headrace.cli.prompt_completion import completions
from headrace.cli.prompt_lines import is_complete
from headrace.errors import HeadraceError, OptionError, SchemaError, SqlError
from headrace.formats.option_checks import check_options
from headrace.formats.registry import FORMATS
from headrace.http.unpacking import Budget, PackedError, Parts, Share, TooLongError, read_all
from headrace.model.tables.schema import TableSchema
from headrace.model.types import parse_type
from headrace.streaming_sql.language.grammar import parse
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Decoder
from headrace_tablestore.wire.plainbuffer.decoding import decode_block, decode_records
from headrace_tablestore.wire.plainbuffer.rows import decode_rows as decode_plainbuffer
from headrace_tablestore.wire.plainbuffer.rows import encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Cell, PlainBufferError, Row
from headrace_tablestore.wire.tokens import BaseToken, StreamToken, decode_token, encode_token
from headrace_ytsaurus.endpoint.http.encodings import packed, unpacking
from headrace_ytsaurus.wire.paths import parse_path
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps, load_fragment, loads
from headrace_ytsaurus.wire.yson.json_rows import read_json_rows
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from tests.chaos.fuzz import mutations
from tests.tablestore.unit.plainbuffer_samples import SAMPLES
from tests.unit import pgoutput_samples as pg
from tests.unit.test_sql_grammar import VENDOR_SCRIPT, WORDS

Input = Any
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Target:
    """A parser.

    Attributes:
        errors: the errors that it documents.
        draw: returns a random input.
        open: prepares the parser for many inputs, and yields the function that takes one.
    """

    errors: tuple[type[Exception], ...]
    draw: Callable[[random.Random], Input]
    open: Callable[[], AbstractContextManager[Callable[[Input], object]]]


def _calls(function: Callable[[Input], object]) -> Callable[[], AbstractContextManager[Callable[[Input], object]]]:
    return lambda: nullcontext(function)


def _bytes_of(samples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    return lambda chance: mutations.changed(chance, samples)


def _texts_of(samples: Sequence[str], words: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda chance: mutations.text(chance, samples, words)


# -- YSON and JSON of YTsaurus ---------------------------------------------------------------------------------

_COMPOSITE = {"type_name": "list", "item": {"type_name": "tuple", "elements": [{"type": "int8"}]}}
_COLUMNS = [
    YtColumn.of("id", "int64"),
    YtColumn.of("price", "double", required=False),
    YtColumn.of("user", "string", required=False),
    YtColumn.of("note", "utf8", required=False),
    YtColumn.of("any", "any"),
    YtColumn.of("list", _COMPOSITE),
]
_ROWS = [
    {"id": n * 37 - 5, "price": n / 7, "user": f"u{n}", "note": "é" * (n % 9), "any": [{"a": 1}], "list": [[1], [2]]}
    for n in range(3)
]
_YSON_ROWS = [b"".join(dumps(row, text) + b";" for row in _ROWS[:count]) for text in (False, True) for count in (1, 3)]
_YSON_VALUES = [
    *_YSON_ROWS,
    b'{a=5u;b=<q=1>"x";c="\xff";d=#;e=<z=%true>#;f=-1.5e300;g=[%false;%nan;%inf]}',
    b"<schema=[{name=a;type=int64}]>//tmp/t",
    *(dumps({"a": [1, {"b": None}], "c": -(2**63), "d": 2**63 - 1}, text) for text in (False, True)),
]
_JSON_ROWS = [
    b'{"id":5,"price":1.5,"user":"u","note":"\xc3\x83\xc2\xa9","any":[{"a":1}],"list":[[1]]}\n{"id":-7}\n',
    b'{"id":{"$type":"int64","$value":"5"},"any":{"$attributes":{"a":1},"$value":null}}\n',
]


def _read_value(data: bytes) -> bool:
    read = [accepts(lambda: loads(data), YsonError), accepts(lambda: load_fragment(data), YsonError)]
    return any(read)


def accepts(read: Callable[[], object], *errors: type[Exception]) -> bool:
    """Return whether one of several readers accepts an input; False counts as refused."""
    try:
        read()
    except errors:
        return False
    return True


# -- PlainBuffer -----------------------------------------------------------------------------------------------

_SCHEMA = TableSchema.of(
    {"user": "string", "order": "long", "a": "string", "b": "double", "c": "boolean", "d": "binary"}, ["user", "order"]
)
_FINE = Row((("user", "u"), ("order", 5)), (Cell("a", "fine"), Cell("b", 1.5), Cell("c", True), Cell("d", b"\xff")))
_PLAINBUFFER = [*(data for _, data in SAMPLES.values()), encode_row(_FINE), encode_rows([_FINE, _FINE])]


def _read_block(data: bytes) -> bool:
    block = accepts(lambda: decode_block(data, _SCHEMA), PlainBufferError, HeadraceError)
    records = accepts(lambda: decode_records([encode_row(_FINE), data], _SCHEMA), PlainBufferError, HeadraceError)
    return block or records


# -- pgoutput --------------------------------------------------------------------------------------------------

_PG_COLUMNS: list[tuple[str, int, pa.DataType, bytes | None]] = [
    ("k", types.TEXT, pa.string(), b"key"),
    ("n", types.NUMERIC, pa.decimal128(12, 2), pg.binary(types.NUMERIC, Decimal("-12.50"))),
    ("t", types.TIMESTAMPTZ, pa.timestamp("us", "UTC"), pg.binary(types.TIMESTAMPTZ, pg.EPOCH)),
    ("l", 1016, pa.list_(pa.int64()), pg.binary(1016, [1, 2, 3])),
    ("j", types.JSONB, pa.string(), b'\x01{"a": 1}'),
]
_PG_ROW = [value for *_, value in _PG_COLUMNS]
_PG_MESSAGES = [
    pg.begin(5),
    pg.relation(7, "t", [(name, oid) for name, oid, _, _ in _PG_COLUMNS]),
    pg.insert(7, _PG_ROW),
    pg.update(7, [b"key", *[pg.Unchanged] * 4], old=_PG_ROW),
    pg.delete(7, key=[b"key", *[None] * 4]),
    pg.truncate(7),
    pg.commit(5),
]


def _draw_transaction(chance: random.Random) -> list[bytes]:
    messages = list(_PG_MESSAGES)
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(messages))
        messages[at] = mutations.changed(chance, [messages[at]])
    return messages


def _read_transaction(messages: list[bytes]) -> None:
    kinds = [kind for _, _, kind, _ in _PG_COLUMNS]
    for images in Decoder().decode(pa.array(messages, pa.binary())).images:
        for place, kind in zip(range(len(images.relation.columns)), kinds, strict=False):
            images.column(place, kind).validate(full=True)


# -- texts -----------------------------------------------------------------------------------------------------

_SQL = [
    VENDOR_SCRIPT,
    "CREATE STREAM s OPTIONS (a = 1) INSERT INTO t SELECT a, count(*) FROM s.b WHERE x > 'y' GROUP BY a;",
    "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = s.b WHEN NOT MATCHED THEN INSERT *",
    "CREATE QUEUE q (a STRING, b ARRAY<STRUCT<c: INT>>) PARTITIONS 3; SHOW TUNNELS; -- end\nDROP TABLE IF EXISTS `t`",
    "BEGIN SELECT CASE WHEN a THEN 1 END; END; CREATE STREAM m MIRROR a INTO b WITH HISTORY",
]
_PATHS = [
    *("//tmp/q/@tablets/0/state", "//tmp/link&/@id", "#1-2-3-4/child/@type", r"//a\/b/\x41\@\\\[\{\&\*", "//tmp/t/*"),
    *("<append=%true;columns=[a;b]>//tmp/t", "//tmp/t{a,b}[#5:#7]", '//tmp/t[("a",5):("b",#)]', "primary://tmp/q"),
]
_TYPES = [
    *("struct<a: int, `b c`: array<map<string, decimal(10,2)>>>", "timestamp_ntz", "decimal(38, 18)", "binary"),
    "array<struct<x:long not null>>",
]
_TYPE_WORDS = ["array", "map", "struct", "decimal", "<", ">", "(", ")", ",", ":", "int", "string", "`a`", "5", " "]
_TOKENS = [
    *(encode_token(StreamToken("channel-1:55", 1_700_000_000_000_000)), encode_token(BaseToken(encode_row(_FINE)))),
    encode_token(BaseToken(b"\x75\x00\x00\x00\x01\x03")),
]
_VALUES = ["1", "0", "-1", "true", "earliest", "latest", "5 seconds", "10mb", "a,b", "2026-01-01", "", "x", "99999"]


def _draw_token(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return mutations.text(chance, _TOKENS, ["=", "A", "/", "+"])
    return base64.b64encode(mutations.changed(chance, [base64.b64decode(token) for token in _TOKENS])).decode()


def _draw_options(chance: random.Random) -> tuple[str, dict[str, str]]:
    name = chance.choice(sorted(FORMATS))
    names = [option.name for option in FORMATS[name].options]
    return name, {
        mutations.text(chance, names, names) if chance.random() < 0.2 else chance.choice(names): mutations.text(
            chance, _VALUES, _VALUES
        )
        for _ in range(chance.choice((1, 2, 4)))
    }


def _read_options(found: tuple[str, dict[str, str]]) -> None:
    name, options = found
    for use in ("source", "sink"):
        try:
            check_options(FORMATS[name], list(options), use=use, place="a test")
        except OptionError:
            continue
    FORMATS[name].settings(options).check()


_TABLE = TableSchema.of(
    {"user": "string", "order": "long", "price": "double", "a b": "decimal(5,2)", "t": "timestamp", "data": "binary"}
    | {"l": "array<int>", "fine": "boolean"},
    ["user", "order"],
)
_CONDITIONS = [
    *("price > 10.5", "user in u1,'u,2', u3", "a b is not null", "user starts with 'it''s'", "order == -5"),
    *("t >= 2026-01-31T12:00:00Z", "data = AAE=", "fine <> true", "l is null"),
]
_CONDITION_WORDS = "user order price a b t data l fine = == != <> < <= > >= in is not null starts with ' , 1 true x"


class _Names:
    """The names that the prompt completes."""

    def tables(self) -> list[str]:
        return ["orders", "odd name", "shop.items"]

    def scans(self) -> list[str]:
        return ["orders_now"]

    def streams(self) -> list[str]:
        return ["totals"]

    def column_names(self, name: str) -> list[str]:
        return ["id", "a b"] if name in self.tables() else []


_PROMPT = [*_SQL, "\\d orders", "\\watch 2.5;", "help", "SELECT o", "SELECT orders.i", "DROP STREAM t", "-- 'a\n/* b"]


def _read_prompt(text: str) -> None:
    is_complete(text)
    completions(text, _Names())
    parse_command(text)


_ENCODINGS = ("gzip", "deflate", "br", *(f"z-{codec}" for codec in ("null", "snappy", "zlib", "bzip2", "zstd_3")))
_ENCODINGS += ("z-brotli_6", "z-lz4", "z-lz4hc")
_BODIES = [_PLAINBUFFER[0], b"a body, " * 100, bytes(range(256)) * 4]


@cache
def _packed(encoding: str) -> list[bytes]:
    return [b"".join(packed([body, body], encoding)) for body in _BODIES]


def _draw_body(chance: random.Random) -> tuple[str, bytes]:
    encoding = chance.choice(_ENCODINGS)
    return encoding, mutations.changed(chance, _packed(encoding))


def _unpack_body(found: tuple[str, bytes]) -> None:
    encoding, body = found
    read_all(unpacking(encoding)(Parts([body])), Share(Budget(_MOST_BYTES), _MOST_BYTES).take)


@contextmanager
def _queries() -> Iterator[Callable[[str], object]]:
    from headrace_ytsaurus.endpoint.select.grammar import parse_query

    yield parse_query


_QUERIES = [
    "a, sum(b) as s from [//tmp/t] where k = 1 and s like '%a_' group by a having s > 5u order by a desc limit 10",
    "* from [//tmp/q] where ([$tablet_index], [$row_index]) >= (0, 5) and x in (1, 2, #) or is_null(y)",
    "if(a, b || 'c', case x when 1 then %true else %nan end) as z from [//t] where k between -1 and 0x5",
]
_QUERY_WORDS = (
    "a b [//t] from where group by order limit having as and or not in like between case when then else end if "
    "( ) , = != < >= + - * / % << ~ | ^ 1 1.5 5u 'x' \"y\" # %true null sum count is_null with totals join using"
)

TARGETS: dict[str, Target] = {
    "YSON rows": Target(
        (YsonError, SchemaError), _bytes_of(_YSON_ROWS), _calls(lambda data: decode_rows(data, _COLUMNS))
    ),
    "YSON values": Target((YsonError,), _bytes_of(_YSON_VALUES), _calls(_read_value)),
    "JSON rows": Target(
        (HeadraceError,), _bytes_of(_JSON_ROWS), _calls(lambda data: read_json_rows(data, _COLUMNS).rows)
    ),
    "PlainBuffer rows": Target((PlainBufferError,), _bytes_of(_PLAINBUFFER), _calls(decode_plainbuffer)),
    "PlainBuffer blocks": Target((HeadraceError,), _bytes_of(_PLAINBUFFER), _calls(_read_block)),
    "pgoutput": Target((HeadraceError,), _draw_transaction, _calls(_read_transaction)),
    "streaming SQL": Target((HeadraceError,), _texts_of(_SQL, WORDS.split()), _calls(parse)),
    "YTsaurus queries": Target((HeadraceError,), _texts_of(_QUERIES, _QUERY_WORDS.split()), _queries),
    "compressed bodies": Target((PackedError, TooLongError), _draw_body, _calls(_unpack_body)),
    "YTsaurus paths": Target((HeadraceError,), _texts_of(_PATHS, list("/@*&[]{}<>#;=:,'\\")), _calls(parse_path)),
    "conditions": Target(
        (OptionError, SchemaError),
        _texts_of(_CONDITIONS, _CONDITION_WORDS.split()),
        _calls(lambda text: parse_condition(text, _TABLE)),
    ),
    "prompt": Target((SqlError,), _texts_of(_PROMPT, [*WORDS.split(), "\\d", "\\watch"]), _calls(_read_prompt)),
    "column types": Target((SchemaError,), _texts_of(_TYPES, _TYPE_WORDS), _calls(parse_type)),
    "options": Target((OptionError,), _draw_options, _calls(_read_options)),
    "tokens": Target((OptionError,), _draw_token, _calls(decode_token)),
}
