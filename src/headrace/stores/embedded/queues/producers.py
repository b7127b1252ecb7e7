"""Producers of the embedded store: one transaction appends rows and saves the last sequence number of the session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OptionError, SessionEpochError
from headrace.model.queues.columns import SEQUENCE_NUMBER, TABLET_INDEX
from headrace.model.queues.validation import sequence_numbers
from headrace.model.queues.values import ProducerSession, Pushed
from headrace.model.tables.schema import Column, RowSchema
from headrace.ports import Producer, Rows
from headrace.rows import to_arrow
from headrace.stores.embedded import catalog
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.queues.queue import EmbeddedQueue

_BEFORE_THE_FIRST = -1


class _Ids(NamedTuple):
    """The key of a row of ``producer_session``."""

    queue: int
    producer: int
    session: str


class EmbeddedProducer(Producer):
    """A producer of the embedded store, by its name."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.name = name

    def __repr__(self) -> str:
        return f"EmbeddedProducer({self.name!r})"

    def open_session(self, queue: str, session: str, *, user_meta: Any = None) -> ProducerSession:
        meta = _meta_to_json(user_meta)
        with self._database.write() as connection:
            ids = self._ids(connection, queue, session)
            connection.execute(
                "INSERT INTO producer_session (queue, producer, session, epoch, sequence, meta)"
                " VALUES (?1, ?2, ?3, 0, ?4, ifnull(?5, 'null'))"
                " ON CONFLICT DO UPDATE SET epoch = epoch + 1, meta = ifnull(?5, meta)",
                (*ids, _BEFORE_THE_FIRST, meta),
            )
            ((epoch, sequence, kept),) = connection.execute(
                "SELECT epoch, sequence, meta FROM producer_session WHERE queue = ? AND producer = ? AND session = ?",
                ids,
            )
        return ProducerSession(self.name, queue, session, epoch, sequence, json.loads(kept))

    def push(
        self,
        session: ProducerSession,
        rows: Rows,
        *,
        sequence_number: int | None = None,
        partition: int | None = None,
        key: str | Sequence[str] | None = None,
        user_meta: Any = None,
    ) -> Pushed:
        if session.producer != self.name:
            raise OptionError("the session belongs to another producer", received=session.producer, valid=self.name)
        meta = _meta_to_json(user_meta)
        queue = EmbeddedQueue(self._database, session.queue)
        typed, numbers = _numbered(rows, queue.schema.written, sequence_number)
        # New rows are prepared without the writer lock, under the assumption that the session does not change.
        with self._database.read() as connection:
            guess = self._last_number(connection, session)
        prepared = queue.prepare(_behind(typed, numbers, guess), partition=partition, key=key)
        with self._database.write() as connection:
            last = self._last_number(connection, session)
            if last != guess:
                prepared = queue.prepare(_behind(typed, numbers, last), partition=partition, key=key)
            if prepared.num_rows:
                queue.apply(connection, prepared, *stamp(connection))
            newest = max(last, int(numbers[-1])) if len(numbers) else last
            connection.execute(
                "UPDATE producer_session SET sequence = ?, meta = ifnull(?, meta)"
                " WHERE queue = ? AND producer = ? AND session = ?",
                (newest, meta, *self._ids(connection, session.queue, session.session)),
            )
        return Pushed(newest, _count_up_to(numbers, last))

    def remove_session(self, queue: str, session: str) -> None:
        with self._database.write() as connection:
            connection.execute(
                "DELETE FROM producer_session WHERE queue = ? AND producer = ? AND session = ?",
                self._ids(connection, queue, session),
            )

    def sessions(self, queue: str | None = None) -> list[ProducerSession]:
        with self._database.read() as connection:
            producer_id = catalog.find(connection, self.name, "producer")
            queue_id = None if queue is None else catalog.find(connection, queue, "queue")
            found = connection.execute(
                "SELECT q.name, s.session, s.epoch, s.sequence, s.meta FROM producer_session s"
                " JOIN object q ON q.id = s.queue WHERE s.producer = ?1 AND (?2 IS NULL OR s.queue = ?2)"
                " ORDER BY q.name, s.session",
                (producer_id, queue_id),
            )
            return [
                ProducerSession(self.name, name, session, epoch, sequence, json.loads(meta))
                for name, session, epoch, sequence, meta in found
            ]

    def _ids(self, connection: apsw.Connection, queue: str, session: str) -> _Ids:
        return _Ids(catalog.find(connection, queue, "queue"), catalog.find(connection, self.name, "producer"), session)

    def _last_number(self, connection: apsw.Connection, session: ProducerSession) -> int:
        """Return the last sequence number of a session.

        Raises:
            SessionEpochError: the session has another epoch, or does not exist.
        """
        found = connection.execute(
            "SELECT epoch, sequence FROM producer_session WHERE queue = ? AND producer = ? AND session = ?",
            self._ids(connection, session.queue, session.session),
        ).fetchone()
        where = f"session {session.session!r} of producer {self.name!r} on queue {session.queue!r}"
        if found is None:
            raise SessionEpochError(
                f"{where} does not exist", received=f"epoch {session.epoch}", remedy="open it again"
            )
        epoch, sequence = found
        if epoch != session.epoch:
            newer_or_none = "was opened by another writer" if epoch > session.epoch else "never had this epoch"
            raise SessionEpochError(
                f"{where} {newer_or_none}",
                received=f"epoch {session.epoch}",
                valid=f"epoch {epoch}",
                remedy="open the session again to take it over, or give each writer a session of its own",
            )
        return int(sequence)


def _numbered(rows: Rows, schema: RowSchema, first: int | None) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return rows in a queue's types, with `$tablet_index` if they have it, and their sequence numbers.

    Raises:
        SchemaError: the rows do not fit the queue.
        SequenceNumberError: numbers are missing, come from two sources, or do not increase.
    """
    beside = (Column(TABLET_INDEX, pa.int64()), Column(SEQUENCE_NUMBER, pa.int64()))
    typed = to_arrow(rows, RowSchema((*schema.columns, *beside)), columns="all")
    given = typed.column(SEQUENCE_NUMBER)
    typed = typed.drop_columns([SEQUENCE_NUMBER])
    if typed.column(TABLET_INDEX).null_count == typed.num_rows:
        typed = typed.drop_columns([TABLET_INDEX])
    return typed, sequence_numbers(given, first)


def _count_up_to(numbers: npt.NDArray[np.int64], last: int) -> int:
    """Return the count of numbers up to ``last``; the numbers increase."""
    return int(np.searchsorted(numbers, last, side="right"))


def _behind(rows: pa.Table, numbers: npt.NDArray[np.int64], last: int) -> pa.Table:
    """Return the rows whose numbers are above the last one."""
    return rows.slice(_count_up_to(numbers, last))


def _meta_to_json(meta: Any) -> str | None:
    if meta is None:
        return None
    try:
        return json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError("user_meta cannot be written as JSON", received=str(error)) from None
