"""The checks of an embedded store and of Spark in `headrace doctor`."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.environment_checks import NO_DISK_BYTES, SCARCE_DISK_BYTES
from headrace.errors import HeadraceError, own_message
from headrace.ports.findings import Finding, Status

if TYPE_CHECKING:
    from headrace.stores.embedded.connection import Database

# WAL mode needs shared memory and file locks between all processes, which network file systems do not provide.
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset([
    "nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs",
    "beegfs", "gpfs", "ocfs2", "gfs2", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs",
    "fuse.rclone", "fuse.ceph", "davfs", "virtiofs",
])
# fmt: on
LONG_WAL_BYTES = 512 << 20


def check_store(directory: Path) -> list[Finding]:
    """Check the file system, the free space, the database and the commits of an embedded store."""
    findings = [_file_system(directory), _disk_space(directory)]
    try:
        from headrace.stores.embedded.checks.store import check_integrity
        from headrace.stores.embedded.connection import Database

        database = Database(directory)
        try:
            integrity = replace(check_integrity(database), name="Store: integrity")
            findings += [integrity, _wal(database), _commit(database)]
        finally:
            database.close()
    except HeadraceError as error:
        findings.append(Finding("Store", Status.FAIL, error.problem, error.remedy or "see the message"))
    return findings


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
    found = f"{free / 2**30:.1f} GiB"
    if free < SCARCE_DISK_BYTES:
        status = Status.FAIL if free < NO_DISK_BYTES else Status.WARN
        return Finding(name, status, found, "free some space; a full disk stops all writers")
    return Finding(name, Status.OK, found)


def _wal(database: Database) -> Finding:
    name = "Store: write-ahead log"
    # stat only: closing an opened file would drop this process's locks on it.
    file = next(iter(database.directory.glob("*-wal")), None)
    size = 0 if file is None else file.stat().st_size
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


def check_spark() -> Finding:
    """Start a Spark session and read a table of a new store through the data source."""
    name = "Spark"
    import headrace
    from headrace.cli.spark_errors import filtered

    rows = 3
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as directory:
        try:
            with headrace.open(directory, create=True) as store:
                table = store.create_table("trial", {"id": "long"}, "id")
                table.put([{"id": value} for value in range(rows)])
            with filtered():
                spark = headrace.session("headrace doctor", master="local[1]")
            try:
                read = spark.read.format("headrace").option("store", directory).option("table", "trial").load().count()
                version = spark.version
            finally:
                spark.stop()
        except Exception as error:
            text = str(error).split("\nJVM stacktrace:")[0].strip()
            text = own_message(text) or f"{type(error).__name__}: {text}"
            return Finding(name, Status.FAIL, text, "see the checks above")
    if read != rows:
        return Finding(name, Status.FAIL, f"read {read} rows instead of {rows}", "report this as a bug of headrace")
    return Finding(
        name, Status.OK, f"Spark {version} read a table through format headrace ({time.monotonic() - started:.0f} s)"
    )
