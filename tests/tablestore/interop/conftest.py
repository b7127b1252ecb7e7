"""The endpoint of Tablestore in a process of its own, for official clients."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.programs import environment


@dataclass(frozen=True)
class Endpoint:
    """The address of the endpoint, and the directory of its instances."""

    url: str
    root: Path


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """`headrace serve` on a free port. It must stop after SIGTERM."""
    root = tmp_path_factory.mktemp("instances")
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--tablestore", "0", "--root", str(root), "--json"]
    log = root / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        yield Endpoint(json.loads(line)["endpoint"], root)
        process.terminate()
        assert process.wait(30) == 0
        assert "traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
