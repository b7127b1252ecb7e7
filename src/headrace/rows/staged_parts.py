"""Staged rows of a batch, joined into the tables that a store applies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from headrace.errors import PublicationError
from headrace.ports import Staged

APPLY_ROWS = 1_000_000
# An Arrow column of text has at most 2 GiB.
_APPLY_BYTES = 256 << 20
_REPLACE_BYTES = 1 << 30


def missing(job: str, sink: str, batch: int, receipt: Staged, reason: str) -> PublicationError:
    """Return the error for rows that are no longer staged."""
    return PublicationError(
        f"staged rows of batch {batch} do not exist",
        received=f"stage {receipt.id} of job {job!r}, sink {sink!r} ({receipt.rows} rows)",
        remedy=f"run the batch again: {reason}",
    )


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of parts as one table."""
    try:
        return pa.concat_tables(parts, promote_options="default")
    except pa.ArrowInvalid as error:
        raise PublicationError("the staged rows of a batch have different columns", received=str(error)) from error


def in_pieces(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of parts in pieces that are large enough for a pass over a table."""
    waiting: list[pa.Table] = []
    count = size = 0
    for part in parts:
        waiting.append(part)
        count += part.num_rows
        size += part.nbytes
        if count >= APPLY_ROWS or size >= _APPLY_BYTES:
            yield joined(waiting)
            waiting, count, size = [], 0, 0
    if waiting:
        yield joined(waiting)


def whole_content(parts: Sequence[pa.Table], none: pa.Table) -> pa.Table:
    """Return the new content of a table as one table; ``none`` without parts.

    Raises:
        PublicationError: the content is too large.
    """
    if sum(part.nbytes for part in parts) > _REPLACE_BYTES:
        raise PublicationError(
            "the new content of the table is too large to be replaced at once",
            valid=f"{_REPLACE_BYTES >> 20} MiB",
            remedy="write it in update or append mode",
        )
    return joined(parts) if parts else none
