"""Decoding of pgoutput into Arrow: exact bytes, random histories, and errors for invalid messages."""

from __future__ import annotations

import datetime
import itertools
import struct
import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, SchemaError, UnsupportedError
from headrace.testing.effort import thorough
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.errors import PgOutputError
from headrace.wire.pgoutput.messages import EPOCH, Decoder, ImageKind, Images, commit_lsn
from headrace.wire.pgoutput.text_values import LAST_TIME
from tests.unit import pgoutput_samples as pg
from tests.unit.pgoutput_samples import Unchanged

UTC = pa.timestamp("us", tz="UTC")
INSTANTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
# Type of PostgreSQL, type of Arrow, values.
SCALARS: list[tuple[int, pa.DataType, st.SearchStrategy[Any]]] = [
    (types.BOOL, pa.bool_(), st.booleans()),
    (types.INT2, pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (types.INT4, pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (types.INT8, pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (types.OID, pa.int64(), st.integers(0, (1 << 32) - 1)),
    (types.FLOAT4, pa.float32(), st.floats(width=32, allow_nan=False)),
    (types.FLOAT8, pa.float64(), st.floats(allow_nan=False)),
    (types.TEXT, pa.string(), TEXTS),
    (types.JSONB, pa.string(), TEXTS),
    (types.BYTEA, pa.binary(), st.binary(max_size=20)),
    (types.UUID, pa.string(), st.uuids().map(str)),
    (types.DATE, pa.date32(), st.dates()),
    (types.TIMESTAMP, pa.timestamp("us"), INSTANTS),
    (types.TIMESTAMPTZ, UTC, INSTANTS.map(lambda value: value.replace(tzinfo=datetime.UTC))),
    (types.NUMERIC, pa.decimal128(38, 9), st.decimals(-(10**28), 10**28, places=9)),
    (types.NUMERIC, pa.decimal128(12, 2), st.decimals(-(10**9), 10**9, places=2)),
    (types.NUMERIC, pa.string(), st.decimals(-(10**45), 10**45, places=8)),
]
ELEMENTS = {element: array for array, element in types.ARRAYS.items()}


def expected(oid: int, data_type: pa.DataType, value: Any) -> Any:
    """Return the value that Arrow has for a value."""
    if isinstance(value, list):
        return [expected(oid, data_type, each) for each in value]
    return format(value, "f") if isinstance(value, Decimal) and pa.types.is_string(data_type) else value


def decoded(*messages: bytes) -> list[Images]:
    return Decoder().decode(pa.array(messages, pa.binary())).images


def column_of(oid: int, data_type: pa.DataType, cells: Sequence[pg.Cell]) -> pa.Array:
    """Return a column of a table that received these cells."""
    rows = [pg.insert(7, [cell]) for cell in cells]
    (images,) = decoded(pg.relation(7, "t", [("c", oid)]), pg.begin(5), *rows, pg.commit(5))
    return images.column(0, data_type)


def test_a_captured_transaction_is_decoded() -> None:
    # Sent by PostgreSQL 15.18: CREATE TABLE t (k text PRIMARY KEY, n int8); INSERT INTO t VALUES ('a', 1).
    messages = [
        bytes.fromhex("42 0000000001528570 000303e681a07fdb 000002d6"),
        bytes.fromhex("52 00004000 7075626c696300 7400 64 0002 01 6b00 00000019 ffffffff 00 6e00 00000014 ffffffff"),
        bytes.fromhex("49 00004000 4e 0002 62 00000001 61 62 00000008 0000000000000001"),
        bytes.fromhex("43 00 0000000001528570 00000000015285a0 000303e681a07fdb"),
    ]
    (images,) = decoded(*messages)
    assert (images.relation.oid, images.relation.schema, images.relation.name) == (0x4000, "public", "t")
    assert [(column.name, column.type, column.key) for column in images.relation.columns] == [
        ("k", types.TEXT, True),
        ("n", types.INT8, False),
    ]
    assert images.column(0, pa.string()).to_pylist() == ["a"]
    assert images.column(1, pa.int64()).to_pylist() == [1]
    assert (images.lsns.tolist(), images.xids.tolist()) == ([0x1528570], [0x2D6])
    assert images.times.tolist() == [0x303E681A07FDB + EPOCH]
    assert images.kinds.tolist() == [ImageKind.INSERT]


def test_each_change_has_its_images() -> None:
    (images,) = decoded(
        pg.relation(7, "t", [("k", types.TEXT), ("n", types.INT4)]),
        pg.begin(9, xid=3),
        pg.insert(7, [b"a", None]),
        pg.update(7, [b"a", b"\0\0\0\1"]),
        pg.update(7, [b"b", None], key=[b"a", None]),
        pg.update(7, [b"b", b"\0\0\0\2"], old=[b"b", None]),
        pg.delete(7, key=[b"b", None]),
        pg.delete(7, old=[b"c", b"\0\0\0\3"]),
        pg.commit(9),
    )
    assert images.kinds.tolist() == [
        ImageKind.INSERT,
        ImageKind.UPDATE,
        ImageKind.OLD_KEY,
        ImageKind.UPDATE,
        ImageKind.OLD_ROW,
        ImageKind.UPDATE,
        ImageKind.DELETED_KEY,
        ImageKind.DELETED_ROW,
    ]
    assert images.messages.tolist() == [2, 3, 4, 4, 5, 5, 6, 7]
    assert images.column(0, pa.string()).to_pylist() == ["a", "a", "a", "b", "b", "b", "b", "c"]
    assert images.column(1, pa.int32()).to_pylist() == [None, 1, None, None, None, 2, None, 3]
    later = images.filter(images.messages > 4)
    assert later.column(1, pa.int32()).to_pylist() == [None, 2, None, 3]


def test_an_unchanged_value_is_that_of_the_old_row_or_marked() -> None:
    (images,) = decoded(
        pg.relation(7, "t", [("k", types.TEXT), ("big", types.TEXT)]),
        pg.begin(9),
        pg.update(7, [b"a", Unchanged], old=[b"a", b"kept"]),
        pg.update(7, [b"b", Unchanged]),
        pg.update(7, [b"d", Unchanged], key=[b"c", None]),
        pg.update(7, [b"e", b"new"]),
        pg.update(7, [Unchanged, b"new"], key=[b"long", None]),
        pg.commit(9),
    )
    assert images.column(0, pa.string()).to_pylist() == ["a", "a", "b", "c", "d", "e", "long", "long"]
    assert images.column(1, pa.string()).to_pylist() == ["kept", "kept", None, None, None, "new", None, "new"]
    unchanged = images.unchanged(1)
    assert unchanged is not None
    assert unchanged.tolist() == [False, False, True, False, True, False, False, False]
    assert images.unchanged(0) is None


def test_a_new_description_of_a_relation_begins_new_images() -> None:
    first, second, third = decoded(
        pg.relation(7, "t", [("k", types.TEXT)]),
        pg.relation(8, "u", [("k", types.INT4)]),
        pg.begin(9),
        pg.insert(7, [b"a"]),
        pg.insert(8, [b"\0\0\0\1"]),
        pg.relation(7, "t", [("k", types.TEXT)]),
        pg.insert(7, [b"b"]),
        pg.commit(9),
        pg.begin(10),
        pg.relation(7, "t", [("k", types.TEXT), ("added", types.BOOL)]),
        pg.insert(7, [b"c", b"\1"]),
        pg.commit(10),
    )
    assert first.column(0, pa.string()).to_pylist() == ["a", "b"]
    assert second.column(0, pa.int32()).to_pylist() == [1]
    assert third.column(1, pa.bool_()).to_pylist() == [True]
    assert (first.lsns.tolist(), third.lsns.tolist()) == ([9, 9], [10])


def test_a_truncation_is_one_of_each_wanted_relation() -> None:
    described = [pg.relation(oid, name, [("k", types.TEXT)]) for oid, name in ((7, "t"), (8, "u"), (9, "v"))]
    messages = pa.array([*described, pg.begin(9, xid=4), pg.truncate(7, 8, 9), pg.commit(9)])
    for wanted, names in ((None, ["t", "u", "v"]), ([9, 7], ["t", "v"])):
        found = Decoder(0, wanted).decode(messages)
        assert found.images == []
        assert [(each.message, each.relation.name, each.transaction.lsn) for each in found.truncations] == [
            (4, name, 9) for name in names
        ]


def test_the_last_message_of_a_read_tells_its_commit() -> None:
    assert commit_lsn(pg.commit(2**40 + 7)) == 2**40 + 7
    for other in (pg.begin(7), b"C", b""):
        with pytest.raises(PgOutputError, match="no Commit message"):
            commit_lsn(other)


def test_other_messages_are_ignored() -> None:
    message = b"M" + struct.pack(">bQ", 0, 5) + b"headrace\0" + struct.pack(">I", 0)
    origin = b"O" + struct.pack(">Q", 5) + b"other\0"
    kind = b"Y" + struct.pack(">I", 99) + b"public\0mood\0"
    (images,) = decoded(
        message, pg.begin(5), origin, kind, pg.relation(7, "t", [("k", 99)]), pg.insert(7, [b"sad"]), pg.commit(5)
    )
    assert images.column(0, pa.string(), types.TEXT).to_pylist() == ["sad"]


@given(st.data())
@settings(max_examples=thorough(300), deadline=None)
def test_values_survive_the_binary_format(data: st.DataObject) -> None:
    oid, data_type, values = data.draw(st.sampled_from(SCALARS))
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    found = column_of(oid, data_type, [pg.binary(oid, value) for value in rows])
    found.validate(full=True)
    assert found.to_pylist() == [expected(oid, data_type, value) for value in rows]


@given(st.data())
@settings(max_examples=thorough(200), deadline=None)
def test_arrays_survive_the_binary_format(data: st.DataObject) -> None:
    oid, data_type, values = data.draw(st.sampled_from(SCALARS))
    arrays = st.none() | st.lists(st.none() | values, max_size=5)
    rows = data.draw(st.lists(arrays, min_size=1, max_size=6))
    found = column_of(ELEMENTS[oid], pa.list_(data_type), [pg.binary(ELEMENTS[oid], value) for value in rows])
    found.validate(full=True)
    assert found.to_pylist() == [expected(oid, data_type, value) for value in rows]


@given(st.data())
@settings(max_examples=thorough(150), deadline=None)
def test_batches_of_any_size_give_the_same_changes(data: st.DataObject) -> None:
    """The relations and the open transaction are kept between batches."""
    keys = st.sampled_from([b"a", b"b", b"", b"long text"])
    numbers = st.none() | st.just(Unchanged) | st.sampled_from([b"\0\0\0\1", b"\xff\xff\xff\xff"])
    rows = st.tuples(keys, numbers).map(list)
    changes = st.one_of(
        st.builds(lambda oid, cells: pg.insert(oid, cells), st.sampled_from([7, 8]), rows),
        st.builds(lambda cells, old: pg.update(7, cells, old=old), rows, rows),
        st.builds(lambda cells: pg.update(8, cells), rows),
        st.builds(lambda key: pg.delete(7, key=[key, None]), keys),
    )
    messages = [pg.relation(oid, "t", [("k", types.TEXT), ("n", types.INT4)]) for oid in (7, 8)]
    for lsn, transaction in enumerate(data.draw(st.lists(st.lists(changes, max_size=6), min_size=1, max_size=6))):
        messages += [pg.begin(lsn, xid=lsn), *transaction, pg.commit(lsn)]
    whole = contents(Decoder(), [messages])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(messages)))))
    edges = [0, *cuts, len(messages)]
    parts = [messages[low:high] for low, high in itertools.pairwise(edges)]
    assert contents(Decoder(), parts) == whole


@given(st.sets(st.integers(1, 15)))
def test_a_partition_is_known_by_the_row_behind_its_description(cuts: set[int]) -> None:
    table, other = (pg.relation(oid, name, [("k", types.INT4)]) for oid, name in ((7, "t"), (8, "u")))
    leaf, next_leaf = (pg.relation(oid, name, [("k", types.INT4)]) for oid, name in ((70, "t0"), (71, "t1")))
    messages = [
        *(pg.begin(10, xid=3), table, leaf, pg.insert(7, ["1"]), pg.insert(7, ["2"]), pg.commit(10)),
        # A TRUNCATE describes its tables, too.
        *(pg.begin(20, xid=4), table, other, pg.truncate(7, 8), other, pg.insert(8, ["1"])),
        *(table, next_leaf, pg.insert(7, ["3"]), pg.commit(20)),
    ]
    # The rows from 21 on are of partitions that are described before.
    for first in (0, 11, 21):
        decoder, found = Decoder(first, [7]), list[tuple[int, int, int]]()
        for low, high in itertools.pairwise([0, *sorted(cuts), len(messages)]):
            decoded = decoder.decode(pa.array(messages[low:high], pa.binary()))
            found += [(each.root, each.leaf.oid, each.transaction.lsn) for each in decoded.leaves]
        assert sorted(found) == [(7, 70, 10), (7, 71, 20)]


def contents(decoder: Decoder, batches: Sequence[Sequence[bytes]]) -> list[Any]:
    """Return all images in the order of their messages."""
    found: list[Any] = []
    for batch in batches:
        # A slice of a larger array, whose offsets do not begin at 0.
        messages = pa.array([b"padding", *batch], pa.binary()).slice(1)
        for images in decoder.decode(messages).images:
            unchanged = images.unchanged(1)
            found += zip(
                images.messages.tolist(),
                [images.relation.oid] * len(images),
                images.kinds.tolist(),
                images.lsns.tolist(),
                images.xids.tolist(),
                images.column(0, pa.string()).to_pylist(),
                images.column(1, pa.int32()).to_pylist(),
                [False] * len(images) if unchanged is None else unchanged.tolist(),
                strict=True,
            )
    return sorted(found, key=lambda each: each[0])


@pytest.mark.parametrize(
    ("oid", "data_type", "texts", "values"),
    [
        (types.BOOL, pa.bool_(), ["t", "f"], [True, False]),
        (types.INT8, pa.int64(), ["-5", "9223372036854775807"], [-5, (1 << 63) - 1]),
        (types.FLOAT8, pa.float64(), ["1.5", "-Infinity"], [1.5, float("-inf")]),
        (types.NUMERIC, pa.decimal128(6, 2), ["1.50", "-1234.56"], [Decimal("1.50"), Decimal("-1234.56")]),
        (types.BYTEA, pa.binary(), ["\\x", "\\x00fF"], [b"", b"\x00\xff"]),
        (types.DATE, pa.date32(), ["1999-12-31"], [datetime.date(1999, 12, 31)]),
        (
            types.TIMESTAMP,
            pa.timestamp("us"),
            ["2024-01-02 03:04:05.6"],
            [datetime.datetime(2024, 1, 2, 3, 4, 5, 600000)],
        ),
        (
            types.TIMESTAMPTZ,
            UTC,
            ["2024-01-02 03:04:05+00"],
            [datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)],
        ),
        (3904, pa.string(), ["[1,5)"], ["[1,5)"]),
        (1007, pa.list_(pa.int32()), ["{1,NULL,3}", "{}", "[0:1]={4,5}"], [[1, None, 3], [], [4, 5]]),
        (1009, pa.list_(pa.string()), ['{"a,b",c,"NULL","\\"\\\\",NULL,""}'], [["a,b", "c", "NULL", '"\\', None, ""]]),
    ],
)
def test_values_in_text_format_are_decoded(
    oid: int, data_type: pa.DataType, texts: list[str], values: list[Any]
) -> None:
    assert column_of(oid, data_type, [*texts, None]).to_pylist() == [*values, None]


def test_times_of_day_are_texts_or_durations() -> None:
    values = [pg.binary(types.TIME, datetime.time(1, 2, 3, 450000)), struct.pack(">q", 86_400_000_000), None]
    assert column_of(types.TIME, pa.string(), values).to_pylist() == ["01:02:03.45", "24:00:00", None]
    assert column_of(types.TIME, pa.duration("us"), values[:1]).to_pylist() == [
        datetime.timedelta(hours=1, minutes=2, seconds=3, microseconds=450000)
    ]


def test_a_numeric_of_many_digits_is_the_text_that_the_server_shows() -> None:
    whole, fraction = Decimal("7" * 9000), Decimal((1, (1,) + (0,) * 4998 + (3,), -5000))
    values = [pg.numeric(whole), pg.numeric(fraction)]
    assert column_of(types.NUMERIC, pa.string(), values).to_pylist() == ["7" * 9000, "-0.1" + "0" * 4998 + "3"]


@pytest.mark.parametrize(
    ("oid", "data_type", "cell", "word"),
    [
        (types.TIMESTAMPTZ, UTC, struct.pack(">q", (1 << 63) - 1), "infinity"),
        (types.TIMESTAMP, pa.timestamp("us"), struct.pack(">q", -(1 << 63)), "-infinity"),
        (types.TIMESTAMP, pa.timestamp("us"), struct.pack(">q", LAST_TIME - EPOCH), str(LAST_TIME - EPOCH)),
        (types.DATE, pa.date32(), struct.pack(">i", (1 << 31) - 1), "infinity"),
        (types.NUMERIC, pa.decimal128(10, 2), pg.numeric(Decimal("NaN")), "NaN"),
        (types.NUMERIC, pa.decimal128(10, 2), pg.numeric(Decimal("1.234")), "1.234"),
        (types.NUMERIC, pa.decimal128(4, 2), pg.numeric(Decimal("123.45")), "12345"),
        (types.NUMERIC, pa.decimal128(4, 2), pg.numeric(Decimal("1E+40")), "1000000"),
        (types.NUMERIC, pa.decimal128(38, 2), pg.numeric(Decimal("0.00000001")), "0.00000001"),
        (types.INT8, pa.int32(), struct.pack(">q", 1 << 40), "1099511627776"),
        (1007, pa.list_(pa.int32()), struct.pack(">IiIiiii", 2, 0, 23, 1, 1, 1, 1), "2 dimensions"),
        (types.TIMESTAMP, pa.timestamp("us"), "infinity", "infinity"),
        (types.NUMERIC, pa.decimal128(10, 2), "NaN", "NaN"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error_that_names_the_column(
    oid: int, data_type: pa.DataType, cell: pg.Cell, word: str
) -> None:
    with pytest.raises(SchemaError) as error:
        column_of(oid, data_type, [None, cell])
    assert "'c'" in str(error.value)
    assert word in str(error.value)


def test_an_unknown_type_in_binary_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="type 3904"):
        column_of(3904, pa.string(), [b"\0\1"])


RELATION = pg.relation(7, "t", [("k", types.TEXT), ("n", types.INT4)])
ROW = pg.insert(7, [b"a", b"\0\0\0\1"])


@pytest.mark.parametrize(
    "messages",
    [
        [b""],
        [b"S\0"],
        [RELATION, ROW],
        [pg.begin(1), pg.begin(2)],
        [pg.commit(1)],
        [RELATION, pg.begin(1), ROW, pg.commit(1), ROW],
        [pg.begin(1), ROW],
        [pg.begin(1), pg.truncate(7)],
        [pg.begin(1)[:-1]],
        [RELATION, pg.begin(1), ROW + b"x"],
        [RELATION, pg.begin(1), ROW[:-1]],
        [RELATION, pg.begin(1), pg.insert(7, [b"a"])],
        [RELATION, pg.begin(1), b"I" + struct.pack(">I", 7) + b"K" + pg.row([b"a", None])],
        [RELATION, pg.begin(1), b"U" + struct.pack(">I", 7) + b"O" + pg.row([b"a", None])],
        [
            RELATION,
            pg.begin(1),
            b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 2) + b"b\xff\xff\xff\xff" + b"nn",
        ],
        [RELATION, pg.begin(1), b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">H", 2) + b"xx"],
        [RELATION[:-1]],
        [RELATION + b"x"],
        [b"R" + struct.pack(">I", 7) + b"\xff\0t\0d\0\0"],
        [RELATION, pg.begin(1), b"T" + struct.pack(">IB", 1 << 31, 0)],
    ],
)
def test_invalid_messages_are_an_error(messages: list[bytes]) -> None:
    with pytest.raises(PgOutputError):
        decoded(*messages)


@pytest.mark.parametrize(
    ("oid", "data_type", "cell"),
    [
        (types.INT8, pa.int64(), b"\0"),
        (types.BOOL, pa.bool_(), b"\2"),
        (types.TEXT, pa.string(), b"\xff"),
        (types.JSONB, pa.string(), b"\2{}"),
        (types.JSONB, pa.string(), b""),
        (types.NUMERIC, pa.decimal128(10, 2), struct.pack(">HhHH", 0xFFFF, 0, 0, 0)),
        (types.NUMERIC, pa.decimal128(10, 2), struct.pack(">HhHHH", 1, 0, 1, 0, 1)),
        (types.NUMERIC, pa.decimal128(10, 2), struct.pack(">HhHHH", 1, 0, 0, 0, 10_000)),
        (1016, pa.list_(pa.int64()), struct.pack(">IiIii", 1, 0, 20, 1 << 30, 1)),
        (1016, pa.list_(pa.int64()), struct.pack(">IiIiii", 1, 0, 20, 1, 1, 99)),
        (1016, pa.list_(pa.int64()), struct.pack(">IiIiii", 1, 0, 20, 1, 1, -5)),
        (types.BYTEA, pa.binary(), "\\xabc"),
        (types.BYTEA, pa.binary(), "abc"),
    ],
)
def test_invalid_values_are_an_error(oid: int, data_type: pa.DataType, cell: pg.Cell) -> None:
    with pytest.raises(PgOutputError, match="'c'"):
        column_of(oid, data_type, [cell])


@given(st.data())
@settings(max_examples=thorough(400), deadline=None)
def test_damaged_messages_are_an_error_or_other_values(data: st.DataObject) -> None:
    """Damage never gives another error than headrace's, and never takes more memory than a few pages."""
    oid, data_type, values = data.draw(
        st.sampled_from([*SCALARS, (1016, pa.list_(pa.int64()), st.lists(st.integers(0, 9)))])
    )
    value = pg.binary(oid, data.draw(values))
    messages = [
        pg.begin(5),
        pg.relation(7, "t", [("k", types.TEXT), ("c", oid)]),
        pg.insert(7, [b"a", value]),
        pg.update(7, [b"a", Unchanged], old=[b"a", value]),
        pg.truncate(7),
        pg.commit(5),
    ]
    index = data.draw(st.integers(0, len(messages) - 1))
    damaged = bytearray(messages[index])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    messages[index] = bytes(damaged[: data.draw(st.integers(0, len(damaged)))] if data.draw(st.booleans()) else damaged)
    tracemalloc.start()
    try:
        for images in Decoder().decode(pa.array(messages, pa.binary())).images:
            for place in range(len(images.relation.columns)):
                images.column(place, data_type).validate(full=True)
    except HeadraceError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8_000_000


def test_unchanged_values_of_many_rows_are_those_of_their_old_rows() -> None:
    rows = [
        pg.update(7, [b"k%d" % n, Unchanged if n % 2 else b"new"], old=[b"k%d" % n, b"x" * (n % 7) or None])
        for n in range(100)
    ]
    (images,) = decoded(pg.relation(7, "t", [("k", types.TEXT), ("c", types.TEXT)]), pg.begin(5), *rows)
    found = np.array(images.column(1, pa.string()).to_pylist(), object)
    old, new = found[0::2].tolist(), found[1::2].tolist()
    assert old == ["x" * (n % 7) or None for n in range(100)]
    assert new == [old[n] if n % 2 else "new" for n in range(100)]
