"""The checks of an embedded store in `headrace doctor`."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

from headrace.model.findings import Finding, Status, disk_space
from headrace.stores.embedded.checks.store import check_integrity
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.store_files import size_of

# WAL mode needs shared memory and file locks between all processes, which network file systems do not provide.
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset([
    "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs",
    "beegfs", "gpfs", "ocfs2", "gfs2", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.ceph", "davfs", "virtiofs",
])
# fmt: on
LONG_WAL_BYTES = 512 << 20


def check_place(directory: Path) -> list[Finding]:
    """Check the file system and the free space of the directory of a store, which may be damaged or missing."""
    return [_file_system(directory), _disk_space(directory)]


def diagnose(database: Database) -> list[Finding]:
    """Check the database, its write-ahead log and its commits."""
    return [replace(check_integrity(database), name="Store: integrity"), _wal(database), _commit(database)]


def file_system_of(path: Path, mounts: str) -> str | None:
    """Return the type of the file system of a path, by the text of /proc/mounts; None if it is unknown."""
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # /proc/mounts has spaces, tabs and backslashes as octal escapes.
        point = fields[1].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        # Of several mounts on one directory, the last is visible.
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _file_system(directory: Path) -> Finding:
    name = "Store: file system"
    mounts = Path("/proc/mounts")
    kind = file_system_of(directory.resolve(), mounts.read_text(errors="replace")) if mounts.exists() else None
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            name,
            Status.FAIL,
            f"{kind}: shared over a network",
            "keep the store on a local disk: file locks are not safe on a network file system",
        )
    return Finding(name, Status.OK, kind or "unknown on this system")


def _disk_space(directory: Path) -> Finding:
    name = "Store: free space"
    existing = next(parent for parent in (directory, *directory.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    return disk_space(name, free, f"{free / 2**30:.1f} GiB", "free some space; a full disk stops all writers")


def _wal(database: Database) -> Finding:
    name = "Store: write-ahead log"
    # stat only: closing an opened file would drop this process's locks on it.
    size = sum(size_of(file) for file in database.directory.glob("*-wal"))
    found = f"{size / 2**20:.1f} MiB"
    if size > LONG_WAL_BYTES:
        return Finding(
            name,
            Status.WARN,
            found,
            "a long read transaction of some process keeps the log from shrinking",
        )
    return Finding(name, Status.OK, found)


def _commit(database: Database) -> Finding:
    name = "Store: commits"
    started = time.monotonic()
    with database.write() as connection:
        connection.execute("REPLACE INTO info (key, value) VALUES ('doctor', ?)", (time.time(),))
    with database.write() as connection:
        connection.execute("DELETE FROM info WHERE key = 'doctor'")
    seconds = (time.monotonic() - started) / 2
    if seconds > 1.0:
        return Finding(
            name, Status.WARN, f"a commit takes {seconds:.1f} s", "other writers are busy, or the disk is slow"
        )
    return Finding(name, Status.OK, f"a commit takes {seconds * 1000:.1f} ms")
