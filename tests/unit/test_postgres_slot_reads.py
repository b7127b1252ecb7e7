"""One read of a slot, in parts: the same changes wherever it is cut, and what it costs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.postgres.tunnels import slot_reads
from headrace.stores.postgres.tunnels.slot_reads import ReadSize, SlotRead, messages_for, reach, spooled
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Decoded
from tests.unit import pgoutput_samples as pg

WANTED, OTHER = 7, 8
END = 1000


def batches(messages: Sequence[bytes], cuts: Sequence[int]) -> list[pa.RecordBatch]:
    """Return messages as Arrow batches that are cut at some places."""
    bounds = [0, *sorted({cut % (len(messages) + 1) for cut in cuts}), len(messages)]
    return [
        pa.record_batch({"data": pa.array(messages[low:high], pa.binary())}) for low, high in itertools.pairwise(bounds)
    ]


def transactions(lsns: Sequence[int], rows: int = 2) -> list[bytes]:
    """Return transactions of one table, with those of another table and a truncation of it between them."""
    messages = [pg.relation(oid, f"t{oid}", [("k", types.TEXT)]) for oid in (WANTED, OTHER)]
    for lsn in lsns:
        inserts = [pg.insert(WANTED, [b"%d-%d" % (lsn, row)]) for row in range(rows)]
        messages += [pg.begin(lsn), *inserts, pg.insert(OTHER, [b"x"]), pg.truncate(OTHER), pg.commit(lsn)]
    return messages


def read_of(messages: Sequence[pa.RecordBatch], start: int = 0) -> SlotRead:
    return SlotRead(messages, (WANTED,), start, END)


def cost(messages: int, total: int) -> ReadSize:
    """Return the size of a read that has received some messages for a number of rows."""
    return ReadSize(END, total, messages)


def keys(part: Decoded) -> list[tuple[int, str]]:
    return [
        (int(lsn), key)
        for images in part.images
        for lsn, key in zip(images.lsns, images.column(0, pa.string()).to_pylist(), strict=True)
    ]


@given(
    st.lists(st.integers(1, END - 1), unique=True).map(sorted),
    st.lists(st.integers(0, 100), max_size=6),
    st.lists(st.integers(1, END), max_size=6),
    st.integers(0, END - 1),
)
def test_the_parts_of_a_read_have_each_change_once(
    lsns: list[int], cuts: list[int], ends: list[int], start: int
) -> None:
    read = read_of(batches(transactions(lsns), cuts), start)
    found, at = [], start
    for end in [*(end for end in sorted(ends) if end > start), END]:
        if end <= at:
            continue
        part, reached = read.decode(at, end)
        assert end <= reached <= END
        assert all(at <= lsn < reached for lsn, _ in keys(part))
        found += keys(part)
        at = reached
    assert found == [(lsn, f"{lsn}-{row}") for lsn in lsns if lsn >= start for row in range(2)]
    # A part that was read before, and one that does not follow the last part.
    for first in {start, (start + END) // 2}:
        assert keys(read.decode(first, END)[0]) == [each for each in found if each[0] >= first]


def test_a_part_ends_with_the_read_if_no_change_follows() -> None:
    read = read_of(batches(transactions([10, 20]), []))
    assert read.decode(0, 15)[1] == 15
    assert read.decode(15, 30)[1] == END
    assert read_of([]).decode(0, 1)[1] == END


def test_a_truncation_is_in_the_part_of_its_transaction() -> None:
    messages = [*transactions([10]), pg.begin(20), pg.truncate(WANTED), pg.commit(20), *transactions([30])]
    read = read_of(batches(messages, []))

    def truncated(start: int, end: int) -> list[int]:
        return [each.transaction.lsn for each in read.decode(start, end)[0].truncations]

    assert [truncated(0, 15), truncated(15, 25)] == [[], [20]]
    assert [lsn for lsn, _ in keys(read.decode(25, END)[0])] == [30, 30]
    assert truncated(20, 21) == [20]


@pytest.mark.parametrize("behind", [0, 1, 100])
def test_the_reads_of_a_batch_cost_the_server_little_more_than_its_log(behind: int) -> None:
    window, log = 10, 10_000
    decoded = count = 0
    start = behind
    while start < log:
        start = reach(start, window, 0, log)
        decoded, count = decoded + start, count + 1
    assert decoded < 4 * log
    assert count <= 12
    # A read of the first changes of a large backlog is small, and a batch of a few windows is one read.
    assert 8 * window <= reach(behind, window, 0, log) - behind <= behind + 8 * window


@pytest.mark.parametrize("per_row", [1.01, 1.26, 1.5, 3.0])
def test_a_batch_with_a_limit_costs_the_server_at_most_twice_its_messages(per_row: float) -> None:
    wanted, left, count, decoded = 100_000, 100_000, 0, 0
    last = None
    while left > 0:
        last = cost(messages_for(left, 0, last), left)
        left = wanted - int(last.messages / per_row)
        decoded, count = decoded + last.messages, count + 1
    assert count <= 2
    assert decoded <= 2.1 * wanted * per_row


@pytest.mark.parametrize("memory", [0, 600, 1 << 20])
def test_what_does_not_fit_into_memory_is_in_a_file_and_the_same(
    memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(slot_reads, "MEMORY_BYTES", memory)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = [pa.record_batch({"data": pa.array([b"x" * size, b""], pa.binary())}) for size in (1, 1000, 0)]
    before = pa.total_allocated_bytes()
    kept = spooled(pa.RecordBatchReader.from_batches(found[0].schema, found))
    assert list(kept) == found
    assert pa.total_allocated_bytes() - before < max(500, memory)
    assert list(tmp_path.iterdir()) == []
    empty = pa.RecordBatchReader.from_batches(found[0].schema, [])
    assert list(spooled(empty)) == []


def test_reads_stay_limited_before_the_first_row_and_behind_the_slot_of_an_idle_table() -> None:
    first = messages_for(20_000, 0, None)
    assert first < messages_for(20_000, 0, cost(first, 20_000)) < 4 * first
    assert messages_for(20_000, 0, cost(first, 0)) < 4 * first
    assert messages_for(1, -(10 << 20), None) == messages_for(1, 0, None) > 0
