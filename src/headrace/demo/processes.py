"""The child processes of the demonstration. Each has its own session, and is ended with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from headrace.errors import HeadraceError

_LOG_LINES_SHOWN = 30
_KILL_SECONDS = 10.0


class Child:
    """A process in its own session, with all its descendants.

    A Spark driver starts a Java process, which starts Python workers in another process group. They would outlive the
    driver. All of them are in the same session.

    Args:
        name: the name in messages.
        arguments: the arguments of this Python, such as ``["-m", "module", …]``.
        log: the file for all output.
    """

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self._log = log
        self._is_empty = False
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `HeadraceError`, with the end of its output, if the process has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
            raise HeadraceError(
                f"the {self.name} ended by itself with code {code}; the end of its output:\n" + "\n".join(lines),
                remedy="run `headrace doctor --spark`",
            )

    def end(self, timeout: float) -> int | None:
        """Send SIGTERM and wait. Return the exit code; None if the process did not end in time and was killed."""
        self._process.terminate()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> int:
        """Kill the process and all its descendants with SIGKILL; return their number."""
        killed: set[int] = set()
        deadline = time.monotonic() + _KILL_SECONDS
        # The system can reuse the id of a session once the session is empty.
        while not self._is_empty and time.monotonic() < deadline:
            members = session_members(self.pid)
            self._is_empty = not members
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            self._process.poll()
            # The next round finds processes that were forked while the members were listed.
            time.sleep(0.01)
        return len(killed)


class Children:
    """Child processes, which are killed at the end of the block."""

    def __init__(self) -> None:
        self._all: list[Child] = []

    def start(self, name: str, arguments: Sequence[str], log: Path) -> Child:
        """Start a process."""
        child = Child(name, arguments, log)
        self._all.append(child)
        return child

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._all:
            child.kill()


def session_members(session: int) -> list[int]:
    """Return the ids of the running processes of a session."""
    if Path("/proc/self/stat").exists():
        found = [_session_of(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid, its_session, running in found if its_session == session and running]
    # Other systems list only process groups. Spark's Python workers, in another group, end with their Java process.
    listing = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, group, state in rows if int(group) == session and not state.startswith("Z")]


def _session_of(entry: Path) -> tuple[int, int, bool]:
    """Return the process id, the session, and whether the process runs (is not a zombie)."""
    try:
        # The name of the program, in parentheses, can contain spaces and parentheses.
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return int(entry.name), -1, False
    return int(entry.name), int(fields[3]), fields[0] not in ("Z", "X")
