"""One read of a slot: the call of the server, its messages, and their decoding in parts.

A slot is read by ``pg_logical_slot_peek_binary_changes``: it returns the transactions whose commit record begins before
an LSN, always the same ones, and does not move the slot. It is several times faster than the replication protocol,
which sends each change by itself.

Each read begins on the server at the slot's position. If each window had its own read, the server would decode the
first window of a long batch once for each window. So a read reaches over several windows, and it grows with its
distance from the slot: a batch of a few windows costs the server once its log, and one of any length about twice.

The server ends a query only after its client has received the whole result, and its transaction keeps dead rows of the
whole database until then. So the messages are received at once, and not at the pace of their consumer. Those that do
not fit into memory are in a temporary file that is mapped into memory.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from psycopg import sql

from headrace.errors import StoreBusyError
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.positions import lsn_text
from headrace.wire.pgoutput.messages import Decoded, Decoder, Images, Truncation, WrittenLeaf, commit_lsn

AWAITED: Final = """
(SELECT string_agg(trim(name), ', ')
FROM string_to_table(current_setting('synchronized_standby_slots', true), ',') name
WHERE (to_jsonb(s) ->> 'failover')::boolean AND trim(name) NOT IN (SELECT slot_name FROM pg_replication_slots))
"""
"""The standbys without a slot, of a row ``s`` of ``pg_replication_slots``: a read of a failover slot would wait for
them for ever, in a call that cannot be interrupted. From PostgreSQL 17 on."""
MEMORY_BYTES = 64 << 20
"""The messages of a read that stay in memory, in bytes."""
_WINDOWS = 8
"""The least length of a read in windows: what does not fit into memory is in a file, and the server needs a second."""
_MESSAGES_PER_ROW = 1.25
# Few changes have less log.
_MESSAGE_BYTES = 100
# The server's number is an integer of 32 bits.
_MOST_MESSAGES = 2**31 - 1


class ReadSize(NamedTuple):
    """What a read of the slot has cost.

    Attributes:
        end: the LSN at which it ended.
        rows: about how many rows its reader wanted; 0 for all.
        messages: the number of its messages.
    """

    end: int
    rows: int
    messages: int


class SlotRead:
    """The messages of all transactions that are committed from ``start`` to before ``end``, two LSNs.

    Only the messages of one part are decoded in memory, and those after them that are in the same Arrow batch.

    Args:
        messages: the messages of the slot in one column of binaries; they may begin before ``start``.
        relations: the oids of the tables whose changes are decoded.

    Attributes:
        next: the LSN at which the next part begins without a second decoding.
    """

    def __init__(self, messages: Sequence[pa.RecordBatch], relations: Collection[int], start: int, end: int) -> None:
        self.start, self.end = start, end
        self._messages = messages
        self._relations = relations
        self._begin(start)

    def _begin(self, start: int) -> None:
        self.next = start
        self._decoder = Decoder(start, self._relations)
        self._left: Iterator[pa.RecordBatch] = iter(self._messages)
        self._images: list[Images] = []
        self._truncations: list[Truncation] = []
        self._leaves: list[WrittenLeaf] = []

    def has(self, lsn: int) -> bool:
        """Return whether the changes from an LSN on can be decoded."""
        return self.start <= lsn < self.end

    def decode(self, start: int, end: int) -> tuple[Decoded, int]:
        """Return the changes from an LSN to another one, or to the end of this read if there are no more changes.

        The second result is the LSN to which they reach. It is fast if ``start`` is the end of the previous part;
        otherwise all messages before it are skipped.
        """
        if start != self.next:
            self._begin(start)
        while self._decoder.reached < end and (batch := next(self._left, None)) is not None:
            decoded = self._decoder.decode(batch.column(0))
            self._images += decoded.images
            self._truncations += decoded.truncations
            self._leaves += decoded.leaves
        if self._decoder.reached < end:
            # There are no more transactions.
            end = self.end
        images, later = [], []
        for each in self._images:
            before = each.lsns < end
            if before.all():
                images.append(each)
            elif before.any():
                images.append(each.filter(before))
                later.append(each.filter(~before))
            else:
                later.append(each)
        truncations = [each for each in self._truncations if each.transaction.lsn < end]
        leaves = [each for each in self._leaves if each.transaction.lsn < end]
        self._images, self._truncations = later, self._truncations[len(truncations) :]
        self._leaves = [each for each in self._leaves if each.transaction.lsn >= end]
        self.next = end
        return Decoded(images, truncations, leaves), end


def reach(start: int, window: int, restart: int, limit: int) -> int:
    """Return the LSN up to which a read of the slot should go.

    Args:
        start: the LSN of the first wanted change.
        window: the length of a window in bytes.
        restart: the LSN from which the server decodes.
        limit: the LSN after the last wanted change.
    """
    return min(limit, max(start + _WINDOWS * window, start + (start - restart)))


def waits(tunnel: str, awaited: str) -> StoreBusyError:
    """Return the error for a slot whose reads would wait for standbys, see `AWAITED`."""
    return StoreBusyError(
        f"the server waits with the changes of tunnel {tunnel!r} for standbys that have no slot",
        received=f"synchronized_standby_slots with {awaited}",
        remedy="create these slots, or remove them from synchronized_standby_slots: a standby that was promoted may "
        "still name itself",
    )


def messages_for(rows: int, log: int, last: ReadSize | None) -> int:
    """Return the number of messages that a read of the slot should have for some rows.

    Transactions have two more messages each, so a batch of small ones needs a second read, which the first one makes
    exact: the server decodes the log of a batch about twice, and not the log after it.

    Args:
        rows: the number of wanted rows.
        log: the log between the slot's position and the first of them, in bytes; negative if the slot of an idle table
            is behind them already.
        last: the read that ended there; None if there was none.
    """
    before, per_row = max(0, log) // _MESSAGE_BYTES, _MESSAGES_PER_ROW
    if last is not None:
        read = last.rows - rows
        # A read that ended before the first of the rows does not show how many messages a row has.
        before = last.messages if read > 0 else 2 * last.messages
        per_row = max(per_row, 1.1 * last.messages / read) if read > 0 else per_row
    return min(before + int(rows * per_row) + 1, _MOST_MESSAGES)


def peek(
    database: TunnelDatabase, slot: str, publication: str, end: int, *, binary: bool, messages: int | None = None
) -> tuple[Sequence[pa.RecordBatch], int]:
    """Return the messages of all transactions from the slot's position whose commit record begins before an LSN.

    They have one column of binaries. The second result is the LSN to which they reach. Another user of the slot, such
    as a twin of a task, delays the call.

    Args:
        end: the LSN.
        messages: the server stops after the transaction with which there are so many messages; None for no limit.

    Raises:
        StoreBusyError: another process reads the slot for too long.
    """
    # The option is a list of identifiers.
    quoted = '"' + publication.replace('"', '""') + '"'
    # Without parameters, the driver reads the result by COPY, which is faster.
    statement = sql.SQL(
        "SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}::pg_lsn, {},"
        " 'proto_version', '1', 'publication_names', {}, 'binary', {})"
    ).format(slot, lsn_text(end), messages, quoted, "true" if binary else "false")

    def read(bulk: Bulk) -> Sequence[pa.RecordBatch]:
        with bulk.cursor() as cursor:
            cursor.execute(statement.as_string())
            return spooled(cursor.fetch_record_batch())

    batches = database.connection.run_bulk(read, repeatable=True)
    if messages is None or sum(each.num_rows for each in batches) < messages:
        return batches, end
    last = next(each for each in reversed(batches) if each.num_rows).column(0)[-1].as_py()
    return batches, min(end, commit_lsn(last) + 1)


def spooled(reader: pa.RecordBatchReader) -> Sequence[pa.RecordBatch]:
    """Return all batches of a reader.

    Those that do not fit into memory are read from a temporary file when they are used. The file has no name; its space
    is free again when the last array over it is deleted.
    """
    batches, size = list[pa.RecordBatch](), 0
    for batch in reader:
        size += batch.nbytes
        if size > MEMORY_BYTES:
            return batches + _in_file(batch, reader)
        batches.append(batch)
    return batches


def _in_file(first: pa.RecordBatch, rest: pa.RecordBatchReader) -> list[pa.RecordBatch]:
    with tempfile.TemporaryFile(prefix="headrace-") as file:
        with pa.ipc.new_file(file, rest.schema) as writer:
            writer.write_batch(first)
            for batch in rest:
                writer.write_batch(batch)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    stored = pa.ipc.open_file(pa.py_buffer(mapped))
    return [stored.get_batch(number) for number in range(stored.num_record_batches)]
