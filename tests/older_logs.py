"""Logs as releases wrote them before a delete was one entry: a PREIMAGE and a DELETE, both with the old row."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.model.tables.changes import ChangeOp
from headrace.stores.embedded.tables import merge
from headrace.stores.embedded.tables.merge import Resolved
from headrace.stores.embedded.tables.writing import Writer


def write_older_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the embedded stores of this process log deletes as older releases did."""
    log = Writer._log

    def older(writer: Writer, changes: Resolved) -> None:
        with_row = changes.ops == ChangeOp.DELETE_WITH_ROW
        if with_row.any():
            ops = np.where(with_row, ChangeOp.DELETE, changes.ops).astype(np.int8)
            changes = Resolved(changes.rows, ops, changes.rows if changes.before is None else changes.before)
        log(writer, changes)

    monkeypatch.setattr(merge, "_WITH_PREIMAGE", (ChangeOp.REPLACE, ChangeOp.UPDATE, ChangeOp.DELETE))
    monkeypatch.setattr(Writer, "_log", older)
