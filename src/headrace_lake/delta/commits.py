"""A commit of a Delta table, repeated beside the commits of other programs.

1. Read the newest version, and check on it what the commit relies on: the marker, the schema, the protocol.
2. Plan the commit for this version: write the files that it adds, and choose the files that it removes.
3. Commit the version after it, unless another program was first. Then all steps are repeated. So another program's
   append, delete or OPTIMIZE between the steps costs an attempt, and never a row.
4. Wait until the log is on the disk. An entry that a power failure has emptied is read as a commit without files, so
   no job may go on before its entry is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import DataLossError, HeadraceError, StoreBusyError, StoreError
from headrace.support import failpoints
from headrace.support.retries import jitter
from headrace_lake.delta.actions import Actions
from headrace_lake.delta.snapshot import ConflictError, Snapshot, UncertainCommitError
from headrace_lake.delta.versions import Versions
from headrace_lake.places import Place, sync

_PATIENCE_SECONDS = 120.0
_LONGEST_PAUSE = 0.2


def commit(
    table: Versions,
    plan: Callable[[Snapshot], Actions | None],
    *,
    markers: Mapping[str, int] | None = None,
    information: Mapping[str, Any] | None = None,
    data_change: bool = True,
) -> int | None:
    """Change a table in one commit.

    Args:
        plan: returns the actions for a version; None if nothing is to be done. It checks the version.
        markers: the transactions of the commit, by application.
        information: texts for the history of the table. Nothing depends on them.
        data_change: whether the rows of the table change.

    Returns:
        The new version; None if nothing was to be done.

    Raises:
        StoreBusyError: other programs commit all the time.
    """

    def attempt(snapshot: Snapshot) -> int | None:
        actions = plan(snapshot)
        if actions is None:
            # The entry is of an earlier process, perhaps, which has not waited for the disk.
            table.sync(snapshot.version)
            return None
        for parent in {path for each in actions.files for path in Path(each).parents}:
            sync(table.directory / parent)
        failpoints.reach("rows-written")
        version = snapshot.commit(actions, markers or {}, information or {}, data_change=data_change)
        failpoints.reach("marker-written")
        if snapshot.is_checkpoint(version):
            # The commit is done, and needs no checkpoint.
            with suppress(HeadraceError):
                Snapshot(table.name, table.directory, version).write_checkpoint()
        table.sync(version)
        return version

    return repeated(table, attempt)


def repeated(table: Versions, attempt: Callable[[Snapshot], int | None]) -> int | None:
    """Run an attempt on the newest version, and again if another program has committed meanwhile."""
    end = time.monotonic() + _PATIENCE_SECONDS
    pause = 0.005
    while True:
        snapshot = table.newest()
        try:
            return attempt(snapshot)
        except ConflictError as error:
            reason = str(error)
        except UncertainCommitError:
            raise
        except (DataLossError, StoreError) as error:
            # Perhaps another program has removed old entries of the log, or VACUUM a file that it has replaced.
            if table.newest().version == snapshot.version:
                raise
            reason = str(error)
        if time.monotonic() > end:
            raise StoreBusyError(f"other programs commit to Delta table {table.name!r} all the time", received=reason)
        time.sleep(jitter(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)


def remove_files(directory: Place, names: Iterable[str]) -> None:
    """Delete files that no version has."""
    for each in names:
        (directory / each).unlink(missing_ok=True)
