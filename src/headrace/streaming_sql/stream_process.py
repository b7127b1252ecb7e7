"""Processes that run one stream, for servers that start streams and may end before them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from headrace.streaming_sql.stream_registry import StreamStatus
from headrace.streaming_sql.workspace import Workspace

_log = logging.getLogger("headrace")


def log_file(workspace: Workspace, name: str) -> Path:
    """Return a file of the workspace with the output of the streams that a server has started."""
    return workspace.directory / name


def start_process(status: StreamStatus, workspace: Workspace, log: Path) -> subprocess.Popen[bytes]:
    """Run ``headrace stream start`` in a process of its own, which outlives this one.

    Args:
        log: the file to which its output is appended.

    Raises:
        AlreadyExistsError: the stream runs.
    """
    status.check_ended()
    arguments = ["stream", "start", status.name, "--workspace", str(workspace.directory.parent)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=os.environ.copy(),
        )
    _log.info("started stream %s in process %d; its output is in %s", status.name, process.pid, log)
    return process
