"""Producers: sessions whose rows the service appends exactly once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from yt.wrapper import YsonFormat

from headrace.errors import OptionError, SessionEpochError, StoreBusyError, StoreError
from headrace.model.queues.columns import SEQUENCE_NUMBER
from headrace.model.queues.validation import Route, sequence_numbers
from headrace.model.queues.values import ProducerSession, Pushed
from headrace.model.tables.schema import Column, RowSchema
from headrace.ports import Producer, Rows
from headrace.rows import to_arrow
from headrace_ytsaurus.store import catalog
from headrace_ytsaurus.store.catalog import Names, check_path_in_queries
from headrace_ytsaurus.store.connection import YtConnection, as_batch, parts
from headrace_ytsaurus.store.failures import translated
from headrace_ytsaurus.store.queues import registrations, routing
from headrace_ytsaurus.store.queues.queue import YtQueue
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.documents import loads
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows

_NUMBER = YtColumn.of(SEQUENCE_NUMBER, "int64", required=False)
_ROWS = YsonFormat(format="binary", require_yson_bindings=False)
_SESSION = (
    YtColumn.of("queue_cluster", "string", required=True),
    YtColumn.of("queue_path", "string", required=True),
    YtColumn.of("session_id", "string", required=True),
    YtColumn.of("sequence_number", "int64", required=True),
    YtColumn.of("epoch", "int64", required=True),
    YtColumn.of("user_meta", "yson"),
)


class YtProducer(Producer):
    """A producer's table, by its name."""

    def __init__(self, connection: YtConnection, names: Names, name: str) -> None:
        self.path = catalog.find(connection, names, name, catalog.PRODUCER).path
        self.name = name
        self._connection = connection
        self._names = names

    def __repr__(self) -> str:
        return f"YtProducer({self.name!r})"

    def open_session(self, queue: str, session: str, *, user_meta: Any = None) -> ProducerSession:
        path = catalog.find(self._connection, self._names, queue, catalog.QUEUE).path
        catalog.find(self._connection, self._names, self.name, catalog.PRODUCER)
        opened = open_session(self._connection, self.path, path, session, _checked_meta(user_meta))
        meta = _plain(opened["user_meta"])
        return ProducerSession(self.name, queue, session, int(opened["epoch"]), int(opened["sequence_number"]), meta)

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
        """Append new rows; see `headrace.ports.Producer.push`.

        More rows than a transaction allows are pushed in several. After a failure, push all of them again: only missing
        rows are appended.
        """
        if session.producer != self.name:
            raise OptionError("the session belongs to another producer", received=session.producer, valid=self.name)
        meta = _checked_meta(user_meta)
        queue = YtQueue(self._connection, self._names, session.queue)
        typed, numbers = _numbered(rows, queue.layout.accepted, sequence_number)
        route = Route.of(partition, key)
        routed = routing.routed(typed, route, queue.ends_for(route, typed))
        last, skipped, first = -1, 0, 0
        for part in parts(routed) or [routed]:
            at_once = numbers[first : first + part.num_rows]
            first += part.num_rows
            try:
                answer = push(self._connection, self.path, queue, session.session, session.epoch, part, at_once, meta)
            except StoreBusyError:
                raise
            except StoreError:
                # The service has no separate error code for a missing session.
                self._last_number(session)
                raise
            skipped += int(answer["skipped_row_count"])
            last = max(last, int(answer["last_sequence_number"]))
        # If all rows existed, the response contains the last number of the call.
        return Pushed(self._last_number(session) if skipped == len(numbers) else last, skipped)

    def _last_number(self, session: ProducerSession) -> int:
        """Return the last sequence number of a session.

        Raises:
            SessionEpochError: the session does not exist.
        """
        for found in self.sessions(session.queue):
            if found.session == session.session:
                if found.epoch == session.epoch:
                    return found.sequence_number
                what = "was opened by another writer" if found.epoch > session.epoch else "never had this epoch"
                raise SessionEpochError(
                    f"session {session.session!r} of producer {self.name!r} on queue {session.queue!r} {what}",
                    received=f"epoch {session.epoch}",
                    valid=f"epoch {found.epoch}",
                )
        raise SessionEpochError(
            f"session {session.session!r} of producer {self.name!r} on queue {session.queue!r} does not exist",
            received=f"epoch {session.epoch}",
            remedy="open it again",
        )

    def remove_session(self, queue: str, session: str) -> None:
        path = catalog.find(self._connection, self._names, queue, catalog.QUEUE).path
        with translated(f"remove session {session!r}"):
            self._connection.client.remove_queue_producer_session(self.path, path, session)

    def sessions(self, queue: str | None = None) -> list[ProducerSession]:
        catalog.find(self._connection, self._names, self.name, catalog.PRODUCER)
        wanted = None if queue is None else catalog.find(self._connection, self._names, queue, catalog.QUEUE).path
        columns = ", ".join(f"[{column.name}]" for column in _SESSION)
        rows = self._connection.select(f"{columns} from {check_path_in_queries(self.path)}", _SESSION).to_pylist()
        cluster = registrations.cluster_name(self._connection)
        return [
            ProducerSession(
                self.name,
                self._names.name(row["queue_path"]) if queue is None else queue,
                row["session_id"],
                row["epoch"],
                row["sequence_number"],
                None if row["user_meta"] is None else _plain(loads(row["user_meta"])),
            )
            for row in rows
            if row["queue_cluster"] == cluster and wanted in (None, row["queue_path"])
        ]


def open_session(connection: YtConnection, producer: str, queue: str, session: str, meta: Any = None) -> Any:
    """Open or take over a session; return its epoch, sequence_number and user_meta."""
    with translated(f"open session {session!r}"):
        return connection.client.create_queue_producer_session(producer, queue, session, user_meta=meta)


def push(
    connection: YtConnection,
    producer: str,
    queue: YtQueue,
    session: str,
    epoch: int,
    rows: pa.Table,
    numbers: npt.NDArray[np.int64],
    meta: Any = None,
) -> Any:
    """Push routed rows with their sequence numbers, in one request; return the response."""
    numbered = rows.append_column(SEQUENCE_NUMBER, pa.array(numbers))
    data = encode_rows(as_batch(numbered), [*queue.layout.written, _NUMBER])
    with translated(f"push to {queue.path}"):
        return connection.client.push_queue_producer(
            producer, queue.path, session, epoch, data, user_meta=meta, input_format=_ROWS, raw=True
        )


def _numbered(rows: Rows, accepted: RowSchema, first: int | None) -> tuple[pa.Table, npt.NDArray[np.int64]]:
    """Return typed rows and their sequence numbers.

    Raises:
        SequenceNumberError: numbers are missing, come from two sources, or do not increase.
    """
    with_number = RowSchema((*accepted.columns, Column(SEQUENCE_NUMBER, pa.int64())))
    typed = to_arrow(rows, with_number, columns="all")
    given = typed.column(SEQUENCE_NUMBER)
    typed = typed.drop_columns([SEQUENCE_NUMBER])
    return typed, sequence_numbers(given, first)


def _checked_meta(meta: Any) -> Any:
    try:
        return None if meta is None else json.loads(json.dumps(meta, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError("user_meta cannot be written as JSON", received=str(error)) from None


def _plain(value: Any) -> Any:
    """Return a value of YSON in Python's own types."""
    from yt.yson import YsonEntity, yson_to_json

    if value is None or isinstance(value, YsonEntity):
        return None
    return json.loads(json.dumps(yson_to_json(value)))
