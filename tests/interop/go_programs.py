"""Go programs with official clients, built by the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def built(source: Path, target: Path) -> Path:
    """Build a program and return its path. Skip the test if Go or the modules of the program are missing.

    Tests download nothing; run ``go mod download`` in the directory of the program.
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
