"""The versions of a table that a process has seen: the newest one, and how far the log is on the disk."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from headrace_lake.delta.log import LOG, Log, log_entry
from headrace_lake.delta.snapshot import Snapshot, check_process
from headrace_lake.places import Place, file_identity, sync

_LAST_CHECKPOINT = "_last_checkpoint"


class Versions:
    """The versions of a table, for all handles of a process.

    A table in a directory is opened once for each of its checkpoints. Then a newer version costs the entries that were
    added to the log, and no longer all entries since the checkpoint.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
    """

    def __init__(self, name: str, directory: Place) -> None:
        self.name = name
        self.directory = directory
        self._newest: Snapshot | None = None
        self._entry: object = None
        self._checkpoint: object = None
        self._synced = -1
        self._synced_checkpoint: object = None
        self._guard = threading.Lock()

    def newest(self) -> Snapshot:
        """Return the newest version.

        Raises:
            NotFoundError: the table does not exist.
        """
        check_process()
        with self._guard:
            found = self._newest and self._after(self._newest)
            return found or self._opened()

    def newer(self, known: Snapshot) -> Snapshot:
        """Return the newest version; a known one if it is that. In a bucket that is its number."""
        if not isinstance(self.directory, Path) and known.version in Log(self.name, self.directory).versions()[-1:]:
            return known
        return self.newest()

    def _after(self, known: Snapshot) -> Snapshot | None:
        """Return the newest version, if the log still has what a known version was read from."""
        has_next = self._entry_of(known.version + 1) is not None
        if not self._is_same(known.version):
            return None
        if not has_next:
            return known
        newer = known.newer()
        entry = newer and self._entry_of(newer.version)
        if entry is None or not self._is_same(known.version):
            return None
        self._newest, self._entry = newer, entry
        return newer

    def _is_same(self, version: int) -> bool:
        """Return whether the table is the one with a known version, and has all later entries.

        An entry never changes: its path leads to another file if the table was replaced. Entries are deleted only after
        a later checkpoint.
        """
        return self._entry_of(version) == self._entry and self._last_checkpoint() == self._checkpoint

    def _opened(self) -> Snapshot:
        last, self._newest = self._newest, None
        if not isinstance(self.directory, Path):
            return Snapshot(self.name, self.directory)
        self._checkpoint = self._last_checkpoint()
        known = max(map(_number, self._names()), default=-1)
        before = self._entry_of(known)
        found = Snapshot(self.name, self.directory)
        if last is None or last.id != found.id or last.version > found.version:
            # The log of another table, or of an older copy.
            self._synced = -1
        entry = self._entry_of(found.version)
        if before is not None and entry is not None and self._entry_of(known) == before:
            # The table was not replaced between its opening and the look at its entry.
            self._newest, self._entry = found, entry
        return found

    def _last_checkpoint(self) -> object:
        return file_identity(self.directory / LOG / _LAST_CHECKPOINT)

    def _entry_of(self, version: int) -> object:
        return file_identity(log_entry(self.directory, version))

    def _names(self) -> list[str]:
        """Return the names of the entries and checkpoints, in order; none if there is no log."""
        try:
            names = [path.name for path in (self.directory / LOG).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if _number(name) >= 0 and name.endswith((".json", ".parquet")))

    def sync(self, version: int) -> None:
        """Wait until the log is on the disk up to a version, with entries of other programs and checkpoints."""
        if not isinstance(self.directory, Path):
            # An object that was written is safe.
            return
        log = self.directory / LOG
        checkpoint = self._last_checkpoint()
        if self._synced < 0 or checkpoint != self._synced_checkpoint:
            names = [name for name in self._names() if _number(name) <= version]
            names = [name for name in names if name.endswith(".parquet") or _number(name) > self._synced]
            names += [_LAST_CHECKPOINT] * (checkpoint is not None)
        else:
            # A log has thousands of names.
            names = [log_entry(log, number).name for number in range(self._synced + 1, version + 1)]
        for name in names:
            # The library removes old entries.
            with suppress(FileNotFoundError):
                sync(log / name)
        sync(log)
        self._synced, self._synced_checkpoint = version, checkpoint


def _number(name: str) -> int:
    """Return the version of an entry or a checkpoint, by its name; -1 for another file."""
    number = name.partition(".")[0]
    return int(number) if number.isdecimal() else -1
