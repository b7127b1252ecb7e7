"""Faults other than kills: full disks, clocks that jump, and networks that are cut."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path

_HOUR = 3_600
# Staged rows are deleted after a day, which is not a fault: see docs/guarantees.md.
JUMPS = (-6 * _HOUR, -60, -1, 1, 60, 6 * _HOUR)
DISK_MEGABYTES = 256


def follow_clock(file: Path) -> None:
    """Let the wall clock of this process differ from the machine's by the seconds in a file; without a file, not.

    Python's `time.time` and `time.time_ns` are replaced, by which headrace dates commits, changes and transactions.
    Other clocks, such as `datetime.datetime.now`, stay those of the machine.
    """
    really, really_ns = time.time, time.time_ns

    def offset() -> float:
        try:
            return float(file.read_text() or 0)
        except (OSError, ValueError):
            return 0.0

    def shifted() -> float:
        return really() + offset()

    def shifted_ns() -> int:
        return really_ns() + int(offset() * 1e9)

    time.time, time.time_ns = shifted, shifted_ns


def mount_disk(directory: Path) -> None:
    """Mount a small disk in memory; this needs the rights of root.

    Raises:
        OSError: it cannot be mounted.
    """
    directory.mkdir(parents=True)
    options = f"size={DISK_MEGABYTES}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "headrace-storm", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise OSError(f"no disk for the storm: {found.stderr.strip()}")


def unmount_disk(directory: Path) -> None:
    """Unmount a disk, also one whose files are open."""
    subprocess.run(["umount", "-l", str(directory)], capture_output=True, check=False)


class Ballast:
    """A file that takes all the space of a disk."""

    def __init__(self, disk: Path) -> None:
        self._file = disk / "ballast"

    def fill(self) -> None:
        """Take the space that is free."""
        block = bytes(1 << 16)
        with suppress(OSError), self._file.open("wb", buffering=0) as file:
            while True:
                file.write(block)

    def free(self) -> None:
        """Give the space back."""
        self._file.unlink(missing_ok=True)


class Cable:
    """A port whose connections lead to a server, until it is cut: then they end, and there are no new ones."""

    def __init__(self, upstream: Callable[[], int]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._whole = True
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections in the middle of whatever they carry."""
        with self._lock:
            self._whole = False
            ended, self._open = self._open, []
        for each in ended:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Permit connections again."""
        self._whole = True

    def close(self) -> None:
        """End."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._whole:
                    raise ConnectionError
                server = socket.create_connection(("127.0.0.1", self._upstream()))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        other = {client: server, server: client}
        try:
            while True:
                ready = connection.wait(other)
                for source in (each for each in other if each in ready):
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    other[source].sendall(data)
        except OSError:
            pass
        finally:
            for each in (client, server):
                each.close()
            with self._lock:
                self._open = [each for each in self._open if each not in other]
