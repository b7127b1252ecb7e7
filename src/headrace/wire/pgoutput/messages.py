"""The messages of a slot, as ``pg_logical_slot_peek_binary_changes`` returns them, in protocol version 1.

`Decoder.decode` finds the rows of a batch of messages, for each relation separately. `Images.column` then decodes one
column. No step works row by row: the rows are walked column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.pgoutput.cells import Bytes, Cells, Integers, Mask, big_endian, readable
from headrace.wire.pgoutput.errors import PgOutputError, fitting
from headrace.wire.pgoutput.values import decode

EPOCH: Final = 946_684_800_000_000
"""The epoch of PostgreSQL, 2000-01-01, in µs since 1970."""
_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _MESSAGE = b"BCORYM"
_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _KEY, _OLD = b"NKO"
# The formats of a value.
_NULL, _UNCHANGED, _TEXT, _BINARY = b"nutb"
_KNOWN: Final = np.zeros(256, np.bool_)
_KNOWN[np.frombuffer(b"BCORYMIUDT", np.uint8)] = True
_ROWS: Final = np.zeros(256, np.bool_)
_ROWS[np.frombuffer(b"IUD", np.uint8)] = True
_T = TypeVar("_T", bound=np.generic)


class RelationColumn(NamedTuple):
    """A column of a relation: its type and type modifier in the catalog, and whether it identifies rows."""

    name: str
    type: int
    modifier: int
    key: bool


class Relation(NamedTuple):
    """A table as a Relation message describes it. ``identity`` is ``d``, ``n``, ``f`` or ``i``, as in pg_class."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class ImageKind:
    """The role of a row image in its change. Not an enum: numpy compares arrays with numbers faster."""

    INSERT: Final = 0
    UPDATE: Final = 1
    """The new row of an update."""
    OLD_KEY: Final = 2
    """The old key of an update; other columns are null."""
    OLD_ROW: Final = 3
    """The old row of an update."""
    DELETED_KEY: Final = 4
    DELETED_ROW: Final = 5


class Transaction(NamedTuple):
    """A transaction: the LSN of its commit, its time in µs since 1970, and its id (32 bits)."""

    lsn: int
    time: int
    xid: int


def commit_lsn(message: bytes) -> int:
    """Return the LSN of the transaction that a message commits.

    Raises:
        PgOutputError: it is no Commit message.
    """
    if len(message) != 26 or message[0] != _COMMIT:
        raise PgOutputError("the last message of a read is no Commit message", received=repr(message[:1]))
    return int.from_bytes(message[2:10])


class Truncation(NamedTuple):
    """A TRUNCATE of a relation; ``message`` is its number among all messages."""

    relation: Relation
    message: int
    transaction: Transaction


class WrittenLeaf(NamedTuple):
    """A partition with a row in a transaction; the row has the oid of the partitioned table, ``root``."""

    root: int
    leaf: Relation
    transaction: Transaction


@dataclass(frozen=True)
class Images:
    """Row images of one relation, in the order of the changes. All arrays have one entry for each image.

    An insert or delete has one image. An update has the new row, and before it the old key or old row if the message
    contains one.

    Attributes:
        kinds: `ImageKind` codes.
        messages: the number of the message of each image, counted from the first message of the decoder.
        lsns: the LSNs of the commits.
        times: the times of the commits, in µs since 1970.
        xids: the ids of the transactions, 32 bits.
    """

    relation: Relation
    kinds: npt.NDArray[np.uint8]
    messages: Integers
    lsns: Integers
    times: Integers
    xids: Integers
    _data: Bytes
    _columns: tuple[_Column, ...]

    def __len__(self) -> int:
        return len(self.kinds)

    def filter(self, mask: Mask) -> Images:
        """Return the images where the mask is true."""
        return replace(
            self,
            kinds=self.kinds[mask],
            messages=self.messages[mask],
            lsns=self.lsns[mask],
            times=self.times[mask],
            xids=self.xids[mask],
            _columns=tuple(column.filter(mask) for column in self._columns),
        )

    def column(
        self, index: int, data_type: pa.DataType, oid: int | None = None, report: Callable[[int], Any] | None = None
    ) -> pa.Array:
        """Return the values of a column. Unchanged values that the messages do not contain are null.

        Args:
            index: the index of the column in the relation.
            data_type: the type of the result.
            oid: the type of the column in PostgreSQL, if it is not the one of the relation: the base type of a domain,
                or text for an enum.
            report: receives the number of values that do not fit, which are null; None if that is an error.

        Raises:
            PgOutputError: the bytes are not values of this type.
            SchemaError: a value does not fit ``data_type``.
            UnsupportedError: the decoder has no conversion between the two types.
        """
        column, described = self._columns[index], self.relation.columns[index]
        text, binary = column.kinds == _TEXT, column.kinds == _BINARY
        valid = text | binary
        if text.any() and binary.any():
            raise PgOutputError(f"column {described.name!r} has values in text format and in binary format")
        cells = Cells(self._data, column.starts, column.lengths, valid, described.name)
        kind, in_text = described.type if oid is None else oid, bool(text.any())
        return fitting(lambda unfit: decode(cells.without(unfit), kind, data_type, text=in_text), len(cells), report)

    def unchanged(self, index: int) -> Mask | None:
        """Return where a column has an unchanged TOASTed value that the messages do not contain; None if nowhere."""
        mask = self._columns[index].kinds == _UNCHANGED
        return mask if mask.any() else None


class Decoded(NamedTuple):
    """The changes in a batch of messages.

    Images of a relation are in order. Another description of a relation begins further `Images`. ``leaves`` has a
    partition where the server describes it: before its first row in a read, and again after changes of its definition.
    So it can have wanted rows behind a description before the first wanted transaction.
    """

    images: list[Images]
    truncations: list[Truncation]
    leaves: list[WrittenLeaf]


class Decoder:
    """Decodes consecutive batches of one read of a slot. It keeps relations and the open transaction between them.

    Args:
        first: the LSN of the first wanted commit. Changes of earlier transactions are left out.
        relations: the oids of the relations whose changes are wanted; None for all.
    """

    def __init__(self, first: int = 0, relations: Collection[int] | None = None) -> None:
        self.reached = 0
        """The LSN of the last transaction that has begun; the transactions before it are complete."""
        self._first = first
        self._wanted = relations
        self._relations: dict[int, Relation] = {}
        self._transaction: Transaction | None = None
        # The relation that the last message describes.
        self._described: Relation | None = None
        self._messages = 0

    def decode(self, messages: pa.BinaryArray | pa.LargeBinaryArray) -> Decoded:
        """Return the changes in a batch of messages; the array has no nulls.

        Raises:
            PgOutputError: a message is invalid, or of a later protocol version.
        """
        if messages.null_count:
            raise PgOutputError("a message is null")
        count = len(messages)
        if count == 0:
            return Decoded([], [], [])
        bounds = _offsets(messages)
        buffer = messages.buffers()[2]
        data = readable(np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8))
        starts, ends = bounds[:-1], bounds[1:]
        if not (starts < ends).all():
            raise PgOutputError("a message is empty", received=f"message {int(np.argmin(starts < ends))}")
        kinds = data[starts]
        if not _KNOWN[kinds].all():
            received = bytes(kinds[~_KNOWN[kinds]][:1])
            raise PgOutputError(
                "unknown kind of message", received=repr(received), valid="B, C, O, R, Y, I, U, D, T, M"
            )
        batch = _Batch(data, starts, ends, kinds, self._transaction, self._first)
        described = self._describe(batch)
        oids = [oid for oid in batch.relation_ids() if self._wanted is None or oid in self._wanted]
        images = [each for oid in oids for each in self._images(batch, oid, described.get(oid, []))]
        images.sort(key=lambda each: int(each.messages[0]))
        truncations = list(self._truncations(batch, described))
        leaves = self._leaves(batch, described)
        for oid, versions in described.items():
            self._relations[oid] = versions[-1][1]
        self._transaction = batch.last_transaction()
        self.reached = max(self.reached, batch.last_lsn)
        self._messages += count
        return Decoded(images, truncations, leaves)

    def _describe(self, batch: _Batch) -> dict[int, list[tuple[int, Relation]]]:
        """Return the relations that the batch describes, each with the index of its message."""
        described: dict[int, list[tuple[int, Relation]]] = {}
        for index in np.flatnonzero(batch.kinds == _RELATION).tolist():
            relation = _relation(bytes(batch.data[batch.starts[index] + 1 : batch.ends[index]]))
            described.setdefault(relation.oid, []).append((index, relation))
        return described

    def _images(self, batch: _Batch, oid: int, described: list[tuple[int, Relation]]) -> Iterator[Images]:
        """Yield the images of a relation, for each of its descriptions in turn."""
        rows = batch.rows_of(oid)
        relation_before = self._relations.get(oid)
        versions: list[tuple[int, Relation | None]] = [(-1, relation_before)]
        for index, relation in described:
            if relation != versions[-1][1]:
                versions.append((index, relation))
        cuts = np.searchsorted(rows, [index for index, _ in versions[1:]])
        for (_, version), part in zip(versions, np.split(rows, cuts), strict=True):
            if len(part) == 0:
                continue
            if version is None:
                raise PgOutputError("a change precedes the description of its relation", received=f"relation {oid}")
            yield self._images_of(batch, version, part)

    def _images_of(self, batch: _Batch, relation: Relation, rows: Integers) -> Images:
        data, starts, ends, kinds = batch.data, batch.starts[rows], batch.ends[rows], batch.kinds[rows]
        tags = data[starts + 5]
        inserts, deletes = kinds == _INSERT, kinds == _DELETE
        old = (tags == _KEY) | (tags == _OLD)
        if not (((tags == _NEW) & ~deletes) | (old & ~inserts)).all():
            raise PgOutputError("a change has an invalid kind of row")
        whole = tags == _OLD
        two = old & ~deletes
        columns = len(relation.columns)
        first = _walk(data, starts + 6, ends, columns)
        if not two.any():
            _check_ends(first.ends, ends)
            image_kinds = np.where(inserts, ImageKind.INSERT, ImageKind.UPDATE)
            image_kinds[deletes] = np.where(whole[deletes], ImageKind.DELETED_ROW, ImageKind.DELETED_KEY)
            return self._assembled(batch, relation, rows, image_kinds, first.columns)
        _check_ends(first.ends[~two], ends[~two])
        second_starts, second_ends = first.ends[two], ends[two]
        if not (second_starts < second_ends).all() or not (data[second_starts] == _NEW).all():
            raise PgOutputError("an update has no new row")
        second = _walk(data, second_starts + 1, second_ends, columns)
        _check_ends(second.ends, second_ends)
        place = np.cumsum(1 + two) - 1
        # The first image of each change, and the new row of each change that has an old one.
        one, other = place - two, place[two]
        image_kinds = np.empty(len(rows) + len(other), np.uint8)
        image_kinds[one] = np.where(inserts, ImageKind.INSERT, ImageKind.UPDATE)
        image_kinds[one[two]] = np.where(whole[two], ImageKind.OLD_ROW, ImageKind.OLD_KEY)
        image_kinds[one[deletes]] = np.where(whole[deletes], ImageKind.DELETED_ROW, ImageKind.DELETED_KEY)
        image_kinds[other] = ImageKind.UPDATE
        joined = [
            _with_old_values(_merged(a, b, one, other), image_kinds)
            for a, b in zip(first.columns, second.columns, strict=True)
        ]
        return self._assembled(batch, relation, np.repeat(rows, 1 + two), image_kinds, joined)

    def _assembled(
        self, batch: _Batch, relation: Relation, rows: Integers, kinds: npt.NDArray[np.uint8], columns: list[_Column]
    ) -> Images:
        lsns, times, xids = batch.transactions_of(rows)
        return Images(
            relation,
            kinds.astype(np.uint8, copy=False),
            rows + self._messages,
            lsns,
            times,
            xids,
            batch.data,
            tuple(columns),
        )

    def _leaves(self, batch: _Batch, described: dict[int, list[tuple[int, Relation]]]) -> list[WrittenLeaf]:
        """Return the partitions with rows that have the oid of another relation.

        Before the first change of a partition, the server describes its partitioned table, and then the partition.
        """
        messages = [(index + 1, relation) for versions in described.values() for index, relation in versions]
        if self._described is not None:
            messages.append((0, self._described))
        self._described = next((relation for index, relation in messages if index == len(batch.kinds)), None)
        roots = [batch.relation_at(index) for index, _ in messages]
        found = [
            (root, leaf, index)
            for (index, leaf), root in zip(messages, roots, strict=True)
            if root is not None and root != leaf.oid and (self._wanted is None or root in self._wanted)
        ]
        if not found:
            return []
        transactions = zip(*batch.transactions_of(np.array([index for *_, index in found])), strict=True)
        return [
            WrittenLeaf(root, leaf, Transaction(*map(int, transaction)))
            for (root, leaf, _), transaction in zip(found, transactions, strict=True)
        ]

    def _truncations(self, batch: _Batch, described: dict[int, list[tuple[int, Relation]]]) -> Iterator[Truncation]:
        indexes = batch.wanted(np.flatnonzero(batch.kinds == _TRUNCATE))
        lsns, times, xids = batch.transactions_of(indexes)
        for place, index in enumerate(indexes.tolist()):
            content = _Content(bytes(batch.data[batch.starts[index] + 1 : batch.ends[index]]))
            count = content.integer(4)
            content.integer(1)
            if len(content.data) - content.at != 4 * count:
                raise PgOutputError("a message has an invalid length", received="a Truncate message")
            transaction = Transaction(int(lsns[place]), int(times[place]), int(xids[place]))
            for _ in range(count):
                oid = content.unsigned(4)
                earlier = [relation for before, relation in described.get(oid, []) if before < index]
                relation = earlier[-1] if earlier else self._relations.get(oid)
                if relation is None:
                    raise PgOutputError("a change precedes the description of its relation", received=f"relation {oid}")
                if self._wanted is None or oid in self._wanted:
                    yield Truncation(relation, index + self._messages, transaction)


class _Batch:
    """The messages of a batch, and their transactions; the rows are those of wanted transactions only."""

    def __init__(
        self,
        data: Bytes,
        starts: Integers,
        ends: Integers,
        kinds: npt.NDArray[np.uint8],
        transaction: Transaction | None,
        first_wanted: int,
    ) -> None:
        self.data, self.starts, self.ends, self.kinds = data, starts, ends, kinds
        self._first_wanted = first_wanted
        self._carried = transaction
        begins = np.flatnonzero(kinds == _BEGIN)
        self._begins = begins
        self._check_length(begins, 21, "Begin")
        self._check_length(np.flatnonzero(kinds == _COMMIT), 26, "Commit")
        at = starts[begins]
        first = transaction or Transaction(0, 0, 0)
        # The transactions in order; the first is the one that a previous batch has begun.
        self._lsns = np.concatenate([[first.lsn], big_endian(data, at + 1, "i8")])
        self._times = np.concatenate([[first.time], big_endian(data, at + 9, "i8") + EPOCH])
        self._xids = np.concatenate([[first.xid], big_endian(data, at + 17, "u4").astype(np.int64)])
        self._check_order()
        rows = np.flatnonzero(_ROWS[kinds])
        self._check_shortest(rows, 8)
        self._rows = self.wanted(rows)
        self._relations = big_endian(data, starts[self._rows] + 1, "u4").astype(np.int64)

    @property
    def last_lsn(self) -> int:
        """The LSN of the last transaction."""
        return int(self._lsns[-1])

    def wanted(self, messages: Integers) -> Integers:
        """Return the messages of wanted transactions."""
        lsns = self.transactions_of(messages)[0]
        # Commits are in order.
        return messages[int(np.searchsorted(lsns, self._first_wanted)) :]

    def relation_ids(self) -> list[int]:
        """Return the oids of the relations with rows in this batch."""
        if len(self._relations) == 0:
            return []
        if (self._relations == self._relations[0]).all():
            return [int(self._relations[0])]
        return [int(oid) for oid in np.unique(self._relations)]

    def rows_of(self, oid: int) -> Integers:
        """Return the indexes of the messages with rows of a relation."""
        mine = self._relations == oid
        return self._rows if mine.all() else self._rows[mine]

    def relation_at(self, message: int) -> int | None:
        """Return the oid of the relation of a message; None if it is no change of a row, or behind the last one."""
        if message == len(self.kinds) or not _ROWS[self.kinds[message]]:
            return None
        start = self.starts[message] + 1
        return int.from_bytes(bytes(self.data[start : start + 4]))

    def transactions_of(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return LSN, time and id of the transaction of each message."""
        if len(self._begins) == 0:
            index = np.zeros(len(rows), np.int64)
        else:
            index = np.cumsum(self.kinds == _BEGIN)[rows]
        return self._lsns[index], self._times[index], self._xids[index]

    def last_transaction(self) -> Transaction | None:
        """Return the transaction that is open after the last message."""
        ends = np.flatnonzero((self.kinds == _BEGIN) | (self.kinds == _COMMIT))
        if len(ends) == 0:
            return self._carried
        if self.kinds[ends[-1]] == _COMMIT:
            return None
        return Transaction(int(self._lsns[-1]), int(self._times[-1]), int(self._xids[-1]))

    def _check_order(self) -> None:
        """Check that transactions do not overlap, and that each change is in one."""
        steps = (self.kinds == _BEGIN).astype(np.int8) - (self.kinds == _COMMIT)
        depth = np.cumsum(steps, dtype=np.int64) + (self._carried is not None)
        inside = _ROWS[self.kinds] | (self.kinds == _TRUNCATE)
        if ((depth < 0) | (depth > 1)).any() or (inside & (depth != 1)).any():
            raise PgOutputError("the messages are not in transactions: Begin, changes, Commit")

    def _check_length(self, index: Integers, size: int, name: str) -> None:
        if not (self.ends[index] - self.starts[index] == size).all():
            raise PgOutputError("a message has an invalid length", received=f"a {name} message", valid=f"{size} bytes")

    def _check_shortest(self, index: Integers, size: int) -> None:
        if not (self.ends[index] - self.starts[index] >= size).all():
            raise PgOutputError("a message ends early", received="a change of a row", valid=f"at least {size} bytes")


class _Content:
    """Reads the fields of one message."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def unsigned(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise PgOutputError("a message ends early")
        return int.from_bytes(self.data[self.at - size : self.at], "big")

    def integer(self, size: int) -> int:
        self.at += size
        if self.at > len(self.data):
            raise PgOutputError("a message ends early")
        return int.from_bytes(self.data[self.at - size : self.at], "big", signed=True)

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise PgOutputError("a message ends early")
        try:
            found = self.data[self.at : end].decode()
        except UnicodeDecodeError:
            raise PgOutputError("a name is not text in UTF-8") from None
        self.at = end + 1
        return found


def _relation(data: bytes) -> Relation:
    """Return the relation that a message describes; ``data`` begins after the kind of the message."""
    content = _Content(data)
    oid, schema, name = content.unsigned(4), content.text(), content.text()
    identity = chr(content.unsigned(1))
    columns = []
    for _ in range(content.unsigned(2)):
        flags, column = content.unsigned(1), content.text()
        columns.append(RelationColumn(column, content.unsigned(4), content.integer(4), bool(flags & 1)))
    if content.at != len(data):
        raise PgOutputError("a message has bytes after its end", received="a Relation message")
    # An empty schema means pg_catalog.
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _offsets(messages: pa.BinaryArray | pa.LargeBinaryArray) -> Integers:
    """Return the offsets of an array of messages in its buffer."""
    dtype = np.int64 if pa.types.is_large_binary(messages.type) else np.int32
    every = np.frombuffer(messages.buffers()[1], dtype, len(messages) + messages.offset + 1)
    return every[messages.offset :].astype(np.int64)


class _Column(NamedTuple):
    """The values of a column: their format (``n``, ``u``, ``t`` or ``b``) and byte ranges."""

    kinds: npt.NDArray[np.uint8]
    starts: Integers
    lengths: Integers

    def filter(self, mask: Mask) -> _Column:
        return _Column(self.kinds[mask], self.starts[mask], self.lengths[mask])


class _Walk(NamedTuple):
    """Tuples: their columns, and the index of the byte after each tuple."""

    columns: list[_Column]
    ends: Integers


def _walk(data: Bytes, at: Integers, ends: Integers, columns: int) -> _Walk:
    """Find the columns of tuples that begin at ``at``, each within its message.

    Raises:
        PgOutputError: a tuple has another number of columns, or does not fit into its message.
    """
    # Each column has at least the byte of its format.
    if not (at + 2 + columns <= ends).all():
        raise PgOutputError("a row ends early", valid=f"{columns} columns")
    counts = big_endian(data, at, "u2")
    if not (counts == columns).all():
        received = int(counts[counts != columns][0])
        raise PgOutputError(
            "a row does not fit its relation", received=f"{received} columns", valid=f"{columns} columns"
        )
    at = at + 2
    walked = []
    for _ in range(columns):
        if not (at < ends).all():
            raise PgOutputError("a row ends early", valid=f"{columns} columns")
        kinds = data[at]
        present = (kinds == _BINARY) | (kinds == _TEXT)
        if present.all():
            if not (at + 5 <= ends).all():
                raise PgOutputError("a row ends early", valid=f"{columns} columns")
            lengths = big_endian(data, at + 1, "u4").astype(np.int64)
            starts = at + 5
            at = starts + lengths
        else:
            if not (present | (kinds == _NULL) | (kinds == _UNCHANGED)).all():
                raise PgOutputError("a column has an unknown format", valid="n, u, t or b")
            if not ((at + 5 <= ends) | ~present).all():
                raise PgOutputError("a row ends early", valid=f"{columns} columns")
            lengths = np.where(present, big_endian(data, np.where(present, at + 1, 0), "u4"), 0).astype(np.int64)
            starts = np.where(present, at + 5, 0)
            at = np.where(present, starts + lengths, at + 1)
        if not (at <= ends).all():
            raise PgOutputError("a value is longer than its message")
        walked.append(_Column(kinds, starts, lengths))
    return _Walk(walked, at)


def _check_ends(reached: Integers, ends: Integers) -> None:
    if not (reached == ends).all():
        raise PgOutputError("a message has bytes after its last column")


def _merged(first: _Column, second: _Column, one: Integers, other: Integers) -> _Column:
    """Return a column with the values of the first images at ``one``, and of the second ones at ``other``."""

    def both(a: npt.NDArray[_T], b: npt.NDArray[_T]) -> npt.NDArray[_T]:
        joined = np.empty(len(a) + len(b), a.dtype)
        joined[one], joined[other] = a, b
        return joined

    return _Column(
        both(first.kinds, second.kinds), both(first.starts, second.starts), both(first.lengths, second.lengths)
    )


def _with_old_values(column: _Column, kinds: npt.NDArray[np.uint8]) -> _Column:
    """Return a column whose unchanged values are those of the old row or key, if the message contains them.

    An update has its old key also if the key is stored out of line, and so is no part of the new row.
    """
    unchanged = np.flatnonzero(column.kinds == _UNCHANGED)
    unchanged = unchanged[(unchanged > 0) & (kinds[unchanged] == ImageKind.UPDATE)]
    in_key = (kinds[unchanged - 1] == ImageKind.OLD_KEY) & (column.kinds[unchanged - 1] != _NULL)
    unchanged = unchanged[(kinds[unchanged - 1] == ImageKind.OLD_ROW) | in_key]
    column.kinds[unchanged] = column.kinds[unchanged - 1]
    column.starts[unchanged] = column.starts[unchanged - 1]
    column.lengths[unchanged] = column.lengths[unchanged - 1]
    return column
