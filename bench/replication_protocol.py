"""A client of PostgreSQL's streaming replication protocol: what psycopg's bindings of libpq give, and our decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import psycopg
import pyarrow as pa
from psycopg import pq

from headrace.model.tables.schema import TableSchema
from headrace.stores.postgres.tunnels.table_images import TableColumns, TableImages
from headrace.wire.pgoutput.messages import Decoder

_BATCH = 65_536
# A message of the log: its kind, three numbers of 8 bytes, and the message of pgoutput.
_HEADER = 25
_LOG, _INSERT, _COMMIT = b"w"[0], b"I"[0], b"C"[0]


@dataclass(frozen=True)
class Streamed:
    """What a read of a slot has cost: rows, and the CPU time of the server's process in seconds."""

    rows: int
    server_cpu: float


def stream_inserts(url: str, slot: str, table: TableSchema, count: int) -> Streamed:
    """Read ``count`` inserts of a slot from its position on, decode them to Arrow, and disconnect. The slot stays.

    Args:
        slot: the name of the slot and of its publication.
    """
    columns = TableColumns("streamed", table, {})
    places = {name: place for place, name in enumerate(table.names)}
    decoder, rows = Decoder(), 0
    with psycopg.connect(url, replication="database", autocommit=True) as connection:
        server = psutil.Process(connection.info.backend_pid)
        begin = sum(server.cpu_times()[:2])
        for messages in _messages(connection.pgconn, slot, count):
            images = decoder.decode(pa.array(messages, pa.binary())).images
            for each in images:
                part, ops = TableImages(each, columns, places).with_operations(None)
                rows += part.as_changes(table, ops).num_rows
        cpu = sum(server.cpu_times()[:2]) - begin
        connection.pgconn.finish()
    return Streamed(rows, cpu)


def _messages(connection: pq.abc.PGconn, slot: str, count: int) -> Iterator[list[bytes]]:
    """Yield the messages of pgoutput in lists, up to the commit after ``count`` inserts."""
    started = connection.exec_(
        f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
        f" (proto_version '1', publication_names '\"{slot}\"', binary 'true')".encode()
    )
    if started.status != pq.ExecStatus.COPY_BOTH:
        raise RuntimeError(started.error_message.decode())
    messages: list[bytes] = []
    inserts = 0
    while True:
        size, data = connection.get_copy_data(0)
        if size <= 0:
            raise RuntimeError("the server has ended the stream")
        if data[0] != _LOG:
            continue
        messages.append(bytes(data[_HEADER:]))
        kind = messages[-1][0]
        inserts += kind == _INSERT
        ended = kind == _COMMIT and inserts >= count
        if ended or len(messages) >= _BATCH:
            yield messages
            messages = []
        if ended:
            return
