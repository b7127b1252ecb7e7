"""Manners in Spark's Python worker processes."""

from __future__ import annotations

import gc

_settled = False


def settle() -> None:
    """Take everything loaded so far out of the garbage collector's sight, once per process.

    Spark's daemon runs a full collection after every task; with pyarrow and pandas loaded that takes longer than
    a small batch. To be called in a task, after its work: by then the libraries are loaded, and they stay.
    """
    global _settled
    if not _settled:
        _settled = True
        gc.collect()
        gc.freeze()
