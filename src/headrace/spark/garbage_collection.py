"""The garbage collector of Spark's Python workers."""

from __future__ import annotations

import gc

_frozen = False


def freeze_loaded_modules() -> None:
    """Exclude all objects that exist now from garbage collection; only the first call in a process does something.

    Spark's daemon runs a full collection after every task. With pyarrow and pandas loaded, a collection takes longer
    than a small batch. Call this at the end of a task, when the libraries are loaded.
    """
    global _frozen
    if not _frozen:
        _frozen = True
        gc.collect()
        gc.freeze()
