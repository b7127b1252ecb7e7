"""Programs in a pseudo-terminal, read until a text appears."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from types import TracebackType

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][0-9A-B]?)")


class Terminal:
    """A program whose standard streams are a pseudo-terminal.

    Attributes:
        text: the output so far, without escape sequences.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._parent, child = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=child,
            stdout=child,
            stderr=child,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
            preexec_fn=lambda: _control(child),
        )
        os.close(child)
        self._read = 0
        self.text = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._parent)

    def type(self, text: str) -> None:
        os.write(self._parent, text.encode())

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """Wait for a text in the output after the last expected text; return the output up to it."""
        deadline = time.monotonic() + seconds
        while (found := self.text.find(text, self._read)) < 0:
            if not self._fill(deadline):
                raise AssertionError(f"no {text!r} in {self.text[self._read :]!r}")
        start, self._read = self._read, found + len(text)
        return self.text[start : self._read]

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for the end of the program; return its exit code."""
        deadline = time.monotonic() + seconds
        while self._fill(deadline):
            pass
        return self._process.wait(max(1.0, deadline - time.monotonic()))

    def _fill(self, deadline: float) -> bool:
        if not connection.wait([self._parent], max(0.0, deadline - time.monotonic())):
            return False
        try:
            received = os.read(self._parent, 65536)
        except OSError:
            # Linux reports the end of the other side as an error.
            return False
        if b"\x1b[6n" in received:
            # prompt_toolkit asks for the position of the cursor.
            os.write(self._parent, b"\x1b[1;1R")
        self.text += _ESCAPES.sub("", received.decode(errors="replace")).replace("\r", "")
        return bool(received)


def _control(terminal: int) -> None:
    """Make a terminal the one that sends Ctrl-C to this process."""
    import fcntl
    import termios

    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
