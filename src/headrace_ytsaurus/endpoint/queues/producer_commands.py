"""The commands of queue producers: sessions, and exactly-once appends."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from headrace.model.queues.columns import SEQUENCE_NUMBER
from headrace.stores.embedded.for_servers import Database, catalog
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.formats import read_rows
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.queues import producer_rows
from headrace_ytsaurus.endpoint.queues.commands import find_queue
from headrace_ytsaurus.endpoint.queues.producer_rows import SessionRow
from headrace_ytsaurus.endpoint.queues.producer_sessions import (
    BEFORE_THE_FIRST,
    check_epoch,
    meta_to_json,
    numbers_of,
)
from headrace_ytsaurus.endpoint.tables.row_changes import Change, QueueChange, SessionChange
from headrace_ytsaurus.endpoint.tables.row_commands import written_columns
from headrace_ytsaurus.endpoint.tables.row_sources import reading
from headrace_ytsaurus.endpoint.tables.state import Table, TableKind, find_table
from headrace_ytsaurus.endpoint.tables.tablet_transactions import TabletTransactions
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.types import YtColumn

_NUMBER = YtColumn.of(SEQUENCE_NUMBER, "int64", required=False)


def _producer(cypress: Cypress, parameters: Parameters) -> Table:
    table = find_table(cypress, parameters.path("producer_path"))
    if table.kind is not TableKind.PRODUCER:
        raise refused(f"{table.name} is not a queue producer", remedy="create it with the type queue_producer")
    return table


def _session(database: Database, producer: Table, queue: str, session: str) -> SessionRow | None:
    with database.read() as connection:
        return producer_rows.find(connection, catalog.find(connection, producer.name, "producer"), queue, session)


def create_queue_producer_session(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Open a session with a new epoch; clients with an older epoch can no longer push."""
    producer, queue = _producer(context.cypress, parameters), find_queue(context, parameters)
    session: str = parameters.text("session_id")
    given: Any = parameters.value("user_meta", None)
    with reading(context, parameters) as database:
        known = _session(database, producer, queue.name, session)
    if known is None:
        row = SessionRow(queue.name, session, BEFORE_THE_FIRST, 0)
    else:
        row = known._replace(epoch=known.epoch + 1)
    if given is not None:
        row = row._replace(meta=meta_to_json(given))
    context.tablet_transactions.write(parameters, [SessionChange.of(producer, row)])
    return Answer.structured({"epoch": row.epoch, "sequence_number": row.sequence, "user_meta": json.loads(row.meta)})


def remove_queue_producer_session(context: Context, parameters: Parameters, body: bytes) -> None:
    """Delete a session."""
    producer, queue = _producer(context.cypress, parameters), find_queue(context, parameters)
    row = SessionRow(queue.name, parameters.text("session_id"), BEFORE_THE_FIRST, 0)
    context.tablet_transactions.write(parameters, [SessionChange.of(producer, row, delete=True)])


def push_queue_producer(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Append the rows whose sequence numbers the session has not accepted before."""
    producer, queue = _producer(context.cypress, parameters), find_queue(context, parameters)
    session: str = parameters.text("session_id")
    epoch = parameters.number("epoch")
    first = parameters.number("sequence_number", None)
    given: Any = parameters.value("user_meta", None)
    where = f"session {session!r} of producer {producer.name} for queue {queue.name}"
    try:
        rows = read_rows(body, context.input_format, (*written_columns(queue), _NUMBER), queue.name).rows
    except YtError as error:
        if repr(SEQUENCE_NUMBER) in str(error):
            raise refused(f"Error parsing sequence number from row: {error}") from None
        raise
    with reading(context, parameters) as database:
        known = _session(database, producer, queue.name, session)
    # Earlier pushes in the same transaction count too.
    pending = _pending(context.tablet_transactions, parameters, producer, queue.name, session)
    state = check_epoch(pending or known, epoch, where)
    numbers = numbers_of(rows, first)
    skipped = int(np.searchsorted(numbers, state.sequence, side="right"))
    last = max(state.sequence, int(numbers[-1])) if len(numbers) else state.sequence
    row = state._replace(sequence=last, meta=state.meta if given is None else meta_to_json(given))
    changes: list[Change] = [SessionChange.of(producer, row)]
    new = rows.slice(skipped).drop_columns([SEQUENCE_NUMBER])
    if new.num_rows:
        changes.insert(0, QueueChange.of(context.database, queue, new))
    else:
        queue.require_mounted()
    context.tablet_transactions.write(parameters, changes)
    return Answer.structured({"last_sequence_number": last, "skipped_row_count": skipped})


def _pending(
    tablet_transactions: TabletTransactions, parameters: Parameters, producer: Table, queue: str, session: str
) -> SessionRow | None:
    """Return the session's state after the command's transaction, None if the transaction has not changed it."""
    transaction = tablet_transactions.of(parameters)
    if transaction is None:
        return None
    with transaction.exclusive():
        for change in reversed(transaction.changes):
            if (
                isinstance(change, SessionChange)
                and change.table.name == producer.name
                and not change.delete
                and (change.row.queue, change.row.session) == (queue, session)
            ):
                return change.row
    return None
