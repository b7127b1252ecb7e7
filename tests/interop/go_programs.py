"""Programs in Go over official clients, as test suites build them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def built(source: Path, target: Path) -> Path:
    """Build a program and return its path; skip the test where Go or the modules of the program are not there.

    Tests do not download: ``go mod download`` in the directory of the program does, once.
    """
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    build = subprocess.run(
        ["go", "build", "-mod=readonly", "-o", str(target), "."],
        cwd=source,
        env={**os.environ, "GOPROXY": "off"},
        capture_output=True,
        text=True,
    )
    if "GOPROXY=off" in build.stderr:
        pytest.skip(f"the Go modules are not here: run `go mod download` in {source}")
    assert build.returncode == 0, build.stderr
    return target
