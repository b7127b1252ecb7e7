"""A queue, its consumers and a producer, compared with lists and dictionaries through all operations."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headrace.errors import DataLossError, NotFoundError, OffsetConflictError, OptionError, SessionEpochError
from headrace.model.queues.values import Bounds, Disposition, ProducerSession, Pushed, partition_of_keys
from headrace.ports import Advance, Append, Queue, Store
from headrace.testing import Place
from headrace.testing.queue_reading import data_in, values

pytestmark = pytest.mark.needs("queues", "transactions")


_numbers = itertools.count()
_partitions = st.integers(0, 4)
_counts = st.integers(0, 6)
_sessions = st.sampled_from(["s1", "s2"])
_readers = st.integers(0, 2)
_COLUMNS = {"data": "string", "$cumulative_data_weight": "long"}


@dataclass
class Part:
    """The expected partition: all values that it ever had, and the index of the first kept one."""

    data: list[str] = field(default_factory=list)
    lower: int = 0

    def weight(self, rows: int) -> int:
        """Return the cumulative weight of a number of rows, each with a text and one number."""
        return sum(1 + len(value) + 8 for value in self.data[:rows])


@dataclass
class Reader:
    """The expected consumer.

    ``vital`` is None while it is not registered. ``kept`` are the offsets up to which rows are kept for it.
    ``published`` are the partitions whose last advance was a publication.
    """

    name: str
    vital: bool | None = None
    offsets: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)


class QueueMachine(RuleBasedStateMachine):
    """After every operation the queue equals the lists, and all offsets equal the model."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.name = f"queue {next(_numbers)}"
        self.parts: list[Part] = []
        self.readers = [Reader(f"{self.name} reader {number}") for number in range(3)]
        self.sessions: dict[str, ProducerSession] = {}
        self.written = itertools.count()
        self.batch = 0
        self.queue: Queue
        self.auto_trim = False
        self.retained_rows: int | None = None

    @initialize(
        partitions=st.integers(1, 3),
        auto_trim=st.booleans(),
        retained_rows=st.none() | st.integers(0, 4),
        vital=st.lists(st.booleans() | st.none(), min_size=3, max_size=3),
    )
    def make(self, partitions: int, auto_trim: bool, retained_rows: int | None, vital: list[bool | None]) -> None:
        self.queue = self.store.create_queue(
            self.name, _COLUMNS, partitions=partitions, auto_trim=auto_trim, retained_rows=retained_rows
        )
        self.auto_trim, self.retained_rows = auto_trim, retained_rows
        self.parts = [Part() for _ in range(partitions)]
        self.producer = self.store.create_producer(f"{self.name} producer")
        self.publisher = self.store.publisher(self.name)
        for reader, is_vital in zip(self.readers, vital, strict=True):
            self.store.create_consumer(reader.name)
            if is_vital is not None:
                self.store.register_consumer(self.name, reader.name, vital=is_vital)
                reader.vital = is_vital

    def new_values(self, count: int) -> list[str]:
        return [f"v{number}{'x' * (number % 3)}" for number in itertools.islice(self.written, count)]

    def number(self, partition: int) -> int:
        return partition % len(self.parts)

    # -- writing ----------------------------------------------------------------------------------------------

    @rule(partition=_partitions, count=_counts)
    def append(self, partition: int, count: int) -> None:
        part, new = self.parts[self.number(partition)], self.new_values(count)
        ranges = self.queue.append(values(*new), partition=self.number(partition))
        first = len(part.data)
        assert [(found.first, found.next) for found in ranges] == ([(first, first + count)] if count else [])
        part.data += new

    @rule(count=st.integers(1, 4))
    def append_balanced(self, count: int) -> None:
        new = self.new_values(count)
        (found,) = self.queue.append(values(*new))
        part = self.parts[found.partition]
        assert len(part.data) == min(len(part.data) for part in self.parts)
        part.data += new

    @rule(count=_counts)
    def append_by_key(self, count: int) -> None:
        new = self.new_values(count)
        self.queue.append(values(*new), key="data")
        numbers = partition_of_keys(pa.table({"data": pa.array(new, pa.string())}), ["data"], len(self.parts))
        for number, value in zip(numbers.tolist(), new, strict=True):
            self.parts[number].data.append(value)

    @rule(numbers=st.lists(_partitions, max_size=6))
    def append_to_named_partitions(self, numbers: list[int]) -> None:
        self.queue.append(self.named(numbers, self.new_values(len(numbers))))

    def named(self, numbers: list[int], new: list[str]) -> list[dict[str, Any]]:
        """Return rows that name their partitions, and add them to the model."""
        for number, value in zip(numbers, new, strict=True):
            self.parts[self.number(number)].data.append(value)
        return [
            {"data": value, "$tablet_index": self.number(number)} for number, value in zip(numbers, new, strict=True)
        ]

    @precondition(lambda self: len(self.parts) < 5)
    @rule()
    def add_partition(self) -> None:
        self.parts.append(Part())
        assert self.queue.add_partitions(1) == len(self.parts)

    @rule(session=_sessions, known=st.booleans())
    def open_session(self, session: str, known: bool) -> None:
        before = self.sessions.get(session)
        opened = self.producer.open_session(self.name, session)
        expected = (0, -1) if before is None else (before.epoch + 1, before.sequence_number)
        assert (opened.epoch, opened.sequence_number) == expected
        self.sessions[session] = opened

    @rule(session=_sessions)
    def remove_session(self, session: str) -> None:
        self.producer.remove_session(self.name, session)
        self.sessions.pop(session, None)

    @rule(
        session=_sessions, partition=_partitions, steps=st.lists(st.integers(1, 3), max_size=5), back=st.integers(0, 4)
    )
    def push(self, session: str, partition: int, steps: list[int], back: int) -> None:
        """Push rows whose numbers can have gaps and can begin before the last accepted number."""
        held = self.sessions.get(session)
        if held is None:
            return
        first = max(0, held.sequence_number + 1 - back)
        numbers = list(itertools.accumulate(steps[1:], initial=first))[: len(steps)]
        new = self.new_values(len(numbers))
        rows = [{"data": value, "$sequence_number": number} for value, number in zip(new, numbers, strict=True)]
        pushed = self.producer.push(held, rows, partition=self.number(partition))
        taken = [value for value, number in zip(new, numbers, strict=True) if number > held.sequence_number]
        last = max([held.sequence_number, *numbers])
        assert pushed == Pushed(last, len(new) - len(taken))
        self.parts[self.number(partition)].data += taken
        self.sessions[session] = ProducerSession(held.producer, held.queue, session, held.epoch, last)

    @rule(session=_sessions, wrong=st.sampled_from([-1, 1]))
    def push_with_another_epoch(self, session: str, wrong: int) -> None:
        held = self.sessions.get(session)
        epoch = wrong + (0 if held is None else held.epoch)
        with pytest.raises(SessionEpochError):
            self.producer.push(
                ProducerSession(self.producer.name, self.name, session, epoch, -1), values("lost"), sequence_number=99
            )

    @rule(
        numbers=st.lists(_partitions, max_size=6),
        reader=_readers,
        offsets=st.dictionaries(_partitions, st.integers(0, 12), max_size=2),
        conflict=st.booleans(),
        again=st.booleans(),
    )
    def publish(self, numbers: list[int], reader: int, offsets: dict[int, int], conflict: bool, again: bool) -> None:
        moved = self.readers[reader]
        target = {self.number(number): offset for number, offset in offsets.items()}
        found = {number: moved.offsets.get(number, 0) for number in target}
        expected = {number: offset + conflict for number, offset in found.items()}
        is_conflict = any(
            expected[number] != found[number] and not (found[number] == target[number] and number in moved.published)
            for number in target
        )
        new = self.new_values(len(numbers))
        before = [len(part.data) for part in self.parts]
        staged = self.publisher.stage_append(self.batch, self.name, [_batch(self.named(numbers, new))])
        writes = [Append(self.name, tuple(staged))]
        advances = [Advance(moved.name, self.name, target, expected)] if target else []
        if advances and (is_conflict or moved.vital is None):
            with pytest.raises(NotFoundError if moved.vital is None else OffsetConflictError):
                self.publisher.publish(self.batch, writes, advances=advances)
            for part, length in zip(self.parts, before, strict=True):
                del part.data[length:]
            return
        assert self.publisher.publish(self.batch, writes, advances=advances)
        moved.offsets.update(target)
        moved.published.update(target)
        moved.kept.update({number: min(expected[number], offset) for number, offset in target.items()})
        if again:
            assert not self.publisher.publish(self.batch, writes, advances=advances)
        self.batch += 1

    # -- reading ----------------------------------------------------------------------------------------------

    @rule(
        partition=_partitions, first=st.integers(0, 30), count=st.integers(1, 9), until=st.none() | st.integers(0, 30)
    )
    def read(self, partition: int, first: int, count: int, until: int | None) -> None:
        number = self.number(partition)
        part = self.parts[number]
        if first < part.lower:
            with pytest.raises(DataLossError):
                self.queue.read(number, first, count, until=until)
            return
        page = self.queue.read(number, first, count, until=until)
        there = part.data[first : until if until is None else max(first, until)]
        found = page.rows.column("data").to_pylist()
        assert bool(found) == bool(there)
        assert found == there[: min(len(found), count)]
        weights = page.rows.column("$cumulative_data_weight").to_pylist()
        assert weights == [part.weight(first + row + 1) for row in range(len(found))]

    @rule(reader=_readers, vital=st.booleans())
    def register(self, reader: int, vital: bool) -> None:
        self.store.register_consumer(self.name, self.readers[reader].name, vital=vital)
        self.readers[reader].vital = vital

    @rule(reader=_readers)
    def unregister(self, reader: int) -> None:
        self.store.unregister_consumer(self.name, self.readers[reader].name)
        self.readers[reader].vital = None

    @rule(
        reader=_readers,
        steps=st.dictionaries(_partitions, st.integers(-2, 6), max_size=4),
        expect=st.sampled_from(["right", "wrong", "nothing"]),
    )
    def advance(self, reader: int, steps: dict[int, int], expect: str) -> None:
        moved = self.readers[reader]
        now = {self.number(number): moved.offsets.get(self.number(number), 0) for number in steps}
        target = {self.number(number): max(0, now[self.number(number)] + step) for number, step in steps.items()}
        expected = {"right": now, "wrong": {number: offset + 1 for number, offset in now.items()}, "nothing": None}[
            expect
        ]
        consumer = self.store.consumer(moved.name)
        if moved.vital is None:
            with pytest.raises(NotFoundError, match="not registered"):
                consumer.advance(self.name, target, expected)
        elif target and expect == "wrong":
            with pytest.raises(OffsetConflictError):
                consumer.advance(self.name, target, expected)
        else:
            consumer.advance(self.name, target, expected)
            moved.offsets.update(target)
            moved.kept.update(target)
            moved.published.difference_update(target)

    @rule(partition=_partitions, before=st.integers(0, 30))
    def trim(self, partition: int, before: int) -> None:
        number = self.number(partition)
        part = self.parts[number]
        if before > len(part.data):
            with pytest.raises(OptionError):
                self.queue.trim(number, before)
            return
        assert self.queue.trim(number, before) == max(0, before - part.lower)
        part.lower = max(part.lower, before)

    @rule()
    def trim_automatically(self) -> None:
        due = self.due()
        assert self.queue.trim() == sum(new - part.lower for new, part in zip(due, self.parts, strict=True))
        for new, part in zip(due, self.parts, strict=True):
            part.lower = new

    def due(self) -> list[int]:
        """Return the index up to which each partition may be trimmed automatically."""
        vital = [reader for reader in self.readers if reader.vital]
        if not vital:
            return [part.lower for part in self.parts]
        targets = []
        for number, part in enumerate(self.parts):
            target = min(reader.kept.get(number, 0) for reader in vital)
            target = min(target, len(part.data) - (self.retained_rows or 0))
            targets.append(max(part.lower, target))
        return targets

    @rule(auto_trim=st.booleans(), retained_rows=st.none() | st.integers(0, 4))
    def set_options(self, auto_trim: bool, retained_rows: int | None) -> None:
        self.queue.set_options(auto_trim=auto_trim, retained_rows=retained_rows)
        self.auto_trim, self.retained_rows = auto_trim, retained_rows

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.queue = self.store.queue(self.name)
        self.producer = self.store.producer(self.producer.name)
        self.publisher = self.store.publisher(self.name)

    # -- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def queue_and_offsets_equal_the_model(self) -> None:
        if not hasattr(self, "queue"):
            return
        if self.auto_trim:
            # A store chooses the moment of automatic trimming; after this call it is done.
            self.queue.trim()
            for new, part in zip(self.due(), self.parts, strict=True):
                part.lower = new
        bounds = self.queue.bounds()
        found = [(bounds[number].lower, bounds[number].upper) for number in range(len(bounds))]
        assert found == [(part.lower, len(part.data)) for part in self.parts]
        for reader in self.readers:
            self.check_reader(reader, bounds)
        taken = {session.session: session for session in self.producer.sessions(self.name)}
        assert taken == self.sessions

    def check_reader(self, reader: Reader, bounds: Mapping[int, Bounds]) -> None:
        consumer = self.store.consumer(reader.name)
        offsets = {number: reader.offsets.get(number, 0) for number in range(len(self.parts))}
        assert consumer.offsets(self.name) == offsets
        assert [found.vital for found in consumer.registrations()] == ([] if reader.vital is None else [reader.vital])
        for status, part in zip(consumer.status(self.name), self.parts, strict=True):
            offset, end = offsets[status.partition], len(part.data)
            assert (status.offset, status.bounds, status.unread_rows) == (
                offset,
                bounds[status.partition],
                end - offset,
            )
            is_there = part.lower <= offset < end
            expected = Disposition.PENDING_CONSUMPTION if is_there else Disposition.EXPIRED
            if offset >= end:
                expected = Disposition.UP_TO_DATE if offset == end else Disposition.AHEAD
            assert status.disposition is expected
            known = offset > 0 and (is_there or offset == end)
            assert status.unread_weight == (part.weight(end) - part.weight(offset) if known else None)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for number, part in enumerate(self.parts):
            assert data_in(self.queue, number, 3) == part.data[part.lower :]
        self.store.drop_queue(self.name)
        assert self.name not in self.store.queues()
        assert self.producer.sessions() == []
        for reader in self.readers:
            assert self.store.consumer(reader.name).registrations() == []
            self.store.drop_consumer(reader.name)
        self.store.drop_producer(self.producer.name)


def _batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, pa.schema({"data": pa.string(), "$tablet_index": pa.int64()}))


def test_queues_and_their_readers_and_writers_follow_the_model(place: Place, store: Store) -> None:
    examples = place.commits(30)
    run_state_machine_as_test(
        type("QueueMachine", (QueueMachine,), {"store": store}),
        settings=settings(max_examples=examples, stateful_step_count=min(30, 4 * examples), deadline=None),
    )
