"""Keys that are not UTF-8 in YTsaurus' tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Table
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

KEYS = sorted({bytes([one, other]) for one in range(256) for other in (0, 34, 91, 255)})


@pytest.fixture(scope="module")
def table(yt_server: YtServer) -> Iterator[Table]:
    with headrace.open(yt_server.url.replace("http", "yt"), token=TOKEN) as store:
        table = store.create_table("//tmp/bytes", {"k": "binary", "v": "long"}, "k")
        table.put([{"k": key, "v": number} for number, key in enumerate(KEYS)])
        yield table


def scanned(table: Table, keys: KeyRange | None = None) -> list[bytes]:
    # The pages are small, so each page starts after a key of the previous one.
    return [key for batch in table.scan(["k"], keys=keys, batch_rows=100) for key in batch.column("k").to_pylist()]


def test_a_scan_continues_after_any_key(table: Table) -> None:
    assert scanned(table) == KEYS


@pytest.mark.parametrize(
    ("low", "high"), [(b"\xfe\xff", None), (None, b"\x80\x22"), (b"\x7f", b"\xff"), (b"\x5b\x5b", b"\x5b\x5c")]
)
def test_a_scan_respects_any_bounds(table: Table, low: bytes | None, high: bytes | None) -> None:
    keys = KeyRange(None if low is None else (low,), None if high is None else (high,))
    assert scanned(table, keys) == [key for key in KEYS if (low or b"") <= key and (high is None or key < high)]


def test_any_key_is_found(table: Table) -> None:
    assert [table.get({"k": key}) for key in (b"\xff\xff", b"\x00\x00", b"\xff")] == [
        {"k": b"\xff\xff", "v": len(KEYS) - 1},
        {"k": b"\x00\x00", "v": 0},
        None,
    ]
    assert sum(batch.num_rows for batch in table.scan(where=[("k", "starts with", b"\xff")])) == 4
