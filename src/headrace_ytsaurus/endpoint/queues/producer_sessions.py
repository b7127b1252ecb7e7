"""Sessions of queue producers: their rows, and the sequence numbers of pushed rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.queues.columns import SEQUENCE_NUMBER
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.formats import JSON, write_value
from headrace_ytsaurus.endpoint.queues.producer_rows import SessionRow
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents

BEFORE_THE_FIRST = -1
_LARGEST = (1 << 63) - 1
_NO_META = "null"


def session_rows(rows: pa.RecordBatch, cluster: str) -> list[SessionRow]:
    """Return rows or keys of a producer's table as sessions.

    Raises:
        YtError: the queue of a row is on another cluster.
    """
    found = []
    for row in rows.to_pylist():
        if row["queue_cluster"] != cluster:
            raise refused(
                "This endpoint keeps producer sessions of its own queues only",
                received=row["queue_cluster"],
                valid=cluster,
            )
        meta = row.get("user_meta")
        found.append(
            SessionRow(
                row["queue_path"],
                row["session_id"],
                row.get("sequence_number", BEFORE_THE_FIRST),
                row.get("epoch", 0),
                _NO_META if meta is None else meta_to_json(documents.loads(meta)),
            )
        )
    return found


def meta_to_json(meta: Any) -> str:
    """Return a client's ``user_meta`` in its saved form."""
    return write_value(meta, JSON).decode()


def numbers_of(rows: pa.RecordBatch, first: int | None) -> npt.NDArray[np.int64]:
    """Return the sequence numbers of pushed rows.

    Args:
        rows: have the column `$sequence_number`, which may be null.
        first: the number of the first row, if the rows themselves have no numbers.

    Raises:
        YtError: 3103, numbers are missing, given twice, or not increasing.
    """
    given = rows.column(SEQUENCE_NUMBER)
    if first is None:
        if given.null_count:
            raise _wrong(f"Row has no {SEQUENCE_NUMBER}, and there is no parameter sequence_number")
        numbers: npt.NDArray[np.int64] = given.to_numpy()
    else:
        if given.null_count < len(given):
            raise _wrong(f"Rows have {SEQUENCE_NUMBER} although the parameter sequence_number is given")
        if not 0 <= first <= _LARGEST - rows.num_rows:
            raise _wrong("Sequence number is out of range", first)
        numbers = first + np.arange(rows.num_rows, dtype=np.int64)
    before = np.concatenate(([BEFORE_THE_FIRST], numbers[:-1]))
    wrong = np.flatnonzero(numbers <= before)
    if len(wrong):
        raise _wrong("Sequence numbers must increase, from 0", int(numbers[wrong[0]]))
    return numbers


def _wrong(message: str, received: int | None = None) -> YtError:
    return YtError(Code.INVALID_ROW_SEQUENCE_NUMBERS, message, received=received)


def check_epoch(row: SessionRow | None, epoch: int, where: str) -> SessionRow:
    """Return the session if the client's epoch is current.

    Raises:
        YtError: 3101, the session never had this epoch; 3102, another client has opened the session since.
    """
    if row is None:
        raise refused(f"There is no {where}", remedy="create it with create_queue_producer_session")
    if epoch > row.epoch:
        raise YtError(Code.INVALID_EPOCH, f"Received epoch of {where} is invalid", received=epoch, valid=str(row.epoch))
    if epoch < row.epoch:
        raise YtError(
            Code.ZOMBIE_EPOCH,
            f"Received epoch of {where} is a zombie: another client has opened the session since",
            received=epoch,
            valid=str(row.epoch),
        )
    return row
