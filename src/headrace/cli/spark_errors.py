"""The standard error of Spark's processes, without the lines that a user does not need.

The Java process and the Python workers share one standard error. Java warns there about its own modules, and Python
workers print tracebacks when Spark closes their pipes at the end of a query. Everything else is shown: users print from
their functions.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO

_JAVA_WARNING = re.compile(r"WARNING: ")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):|Exception ignored in|Process \S+:$")
_FRAME_FILE = re.compile(r'File "([^"]+)"')
_BROKEN_PIPE = re.compile(r"(BrokenPipeError|ConnectionResetError|EOFError|KeyboardInterrupt)\b")
_BETWEEN = re.compile(r"(During handling of the above exception|The above exception was the direct cause)")
_OF_SPARK = re.compile(r"/pyspark/|/headrace/|<frozen |/lib/python3[^/]*/(?!site-packages)")

# Python ends with an abort if a daemon thread is just writing to the standard error. So the thread writes nothing after
# the functions that Python calls at its end: the first one that is registered is the last one that is called.
_writing = threading.Lock()
atexit.register(_writing.acquire, timeout=1)


class SparkErrors:
    """Decides line by line what is shown. The lines of a traceback are kept until it has ended."""

    def __init__(self) -> None:
        self._traceback: list[str] = []
        self._dropped = False

    def shown(self, line: str) -> list[str]:
        """Return the lines to show after one more line."""
        if self._traceback:
            if _TRACEBACK.match(line):
                # The heading of a traceback, such as `Exception ignored in`, has no frames.
                heading = not any(each.startswith(" ") for each in self._traceback)
                found = [] if heading else self.rest()
                self._traceback.append(line)
                return found
            self._traceback.append(line)
            # Frames are indented; the first other line is the exception.
            return [] if line.startswith(" ") or not line else self.rest()
        if _TRACEBACK.match(line):
            self._traceback = [line]
            return []
        if self._dropped and (not line.strip() or _BETWEEN.match(line)):
            return []
        self._dropped = _JAVA_WARNING.match(line) is not None
        return [] if self._dropped else [line]

    def rest(self) -> list[str]:
        """Return the lines of a traceback that has ended, unless only Spark's own code is in it."""
        lines, self._traceback = self._traceback, []
        files = [found[1] for line in lines if (found := _FRAME_FILE.search(line))]
        self._dropped = bool(
            lines and files and _BROKEN_PIPE.match(lines[-1]) and all(_OF_SPARK.search(file) for file in files)
        )
        return [] if self._dropped else lines


@contextlib.contextmanager
def filtered() -> Iterator[None]:
    """Filter the standard error of a Java process that Spark starts in the block, as long as that process lives."""
    # pyspark starts Java by this name, and has no setting for its standard error.
    gateway: Any = import_module("pyspark.java_gateway")
    read, write = os.pipe()
    original = gateway.Popen
    gateway.Popen = functools.partial(original, stderr=write)
    try:
        yield
    finally:
        gateway.Popen = original
        # Java has its own copy: the thread ends with the last process that has one.
        os.close(write)
        threading.Thread(target=_forward, args=(os.fdopen(read, "rb"),), name="spark-stderr", daemon=True).start()


def _forward(file: BinaryIO) -> None:
    errors = SparkErrors()
    with file:
        for line in file:
            _show(errors.shown(line.decode(errors="replace").rstrip("\n")))
    _show(errors.rest())


def _show(lines: list[str]) -> None:
    # Looked up each time: a live table on the terminal replaces it, and moves below the lines.
    with _writing, contextlib.suppress(OSError, ValueError):
        for line in lines:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
