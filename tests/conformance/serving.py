"""The server behind the stores that need one: a process of the session's own, on a free port of loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

KEY_ID, KEY_SECRET = "LTAItest", "hush-hush"
# Processes that a test starts find the server of their parent here.
_ENDPOINT = "HEADRACE_TEST_TABLESTORE"
_ROOT = "HEADRACE_TEST_TABLESTORE_ROOT"
_running: tuple[subprocess.Popen[str], Path] | None = None


def tablestore_endpoint() -> str:
    """Return the address of a Tablestore endpoint, started when it is first asked for."""
    global _running
    if _ENDPOINT not in os.environ:
        root = Path(tempfile.mkdtemp(prefix="headrace-tablestore-"))
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.main", "serve", "--json", "--tablestore", "0", "--root", str(root)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HEADRACE_ACCESS_KEY_ID": KEY_ID, "HEADRACE_ACCESS_KEY_SECRET": KEY_SECRET},
        )
        _running = process, root
        assert process.stdout is not None
        os.environ[_ENDPOINT] = str(json.loads(process.stdout.readline())["endpoint"])
        os.environ[_ROOT] = str(root)
    return os.environ[_ENDPOINT]


def tablestore_root() -> Path:
    """Return the directory that the endpoint serves: its sub-directories are embedded stores."""
    return Path(os.environ[_ROOT])


def stop() -> None:
    """End the server that this process has started, if it has."""
    global _running
    if _running is None:
        return
    process, root = _running
    _running = None
    os.environ.pop(_ENDPOINT, None)
    os.environ.pop(_ROOT, None)
    process.terminate()
    process.wait(30)
    if process.stdout is not None:
        process.stdout.close()
    shutil.rmtree(root, ignore_errors=True)
