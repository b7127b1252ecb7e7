"""Programs in other languages with official clients: their build, and processes that print lines of JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ACCESS_KEY_ID = "LTAIinterop"
ACCESS_KEY_SECRET = "only for tests"
HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "interop"
# Messages of the tools without a network or a permitted registry.
_OFFLINE = re.compile(
    r"dial tcp|no such host|i/o timeout|proxyconnect|disabled by GOPROXY"
    r"|Could not transfer artifact|Unknown host|Connection (refused|timed out)|offline mode"
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENOTCACHED|No matching distribution|name resolution|read timeout",
    re.IGNORECASE,
)


def environment() -> dict[str, str]:
    """Return the variables of a process that uses the endpoint."""
    return {**os.environ, "HEADRACE_ACCESS_KEY_ID": ACCESS_KEY_ID, "HEADRACE_ACCESS_KEY_SECRET": ACCESS_KEY_SECRET}


def built_with_go(name: str, directory: Path) -> list[str]:
    """Build a Go program of this directory, and return its command. Go caches downloads and results."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    program = directory / "program"
    _build(["go", "build", "-mod=readonly", "-o", str(program), "."], HERE / name)
    return [str(program)]


def built_with_maven(name: str, main: str, directory: Path) -> list[str]:
    """Build a Java program of this directory, and return its command. Maven caches downloads."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.skip("Maven is not installed")
    source = directory / name
    shutil.copytree(HERE / name, source)
    _build(["mvn", "-q", "-B", "compile", "dependency:build-classpath", "-Dmdep.outputFile=classpath"], source)
    classpath = (source / "classpath").read_text().strip()
    return ["java", "-cp", f"{source / 'target' / 'classes'}:{classpath}", main]


def installed_with_npm(name: str, directory: Path) -> Path:
    """Copy a directory of JavaScript programs, install its packages, and return the copy. npm caches downloads."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    source = directory / name
    shutil.copytree(HERE / name, source)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0"]
    _build(["npm", "ci", *options], source)
    return source


def installed_with_pip(requirement: str) -> Path:
    """Install a Python program with its dependencies into a directory of its own, once, and return the directory."""
    target = BUILD / requirement
    if not target.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as made:
            options = ["--quiet", "--disable-pip-version-check", "--retries=0", f"--target={made}/packages"]
            _build([sys.executable, "-m", "pip", "install", *options, requirement], BUILD)
            Path(made, "packages").rename(target)
    return target


def _build(command: list[str], source: Path) -> None:
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    output = built.stdout + built.stderr
    if built.returncode and _OFFLINE.search(output):
        pytest.skip(f"the client's packages cannot be fetched: {output.strip().splitlines()[-1]}")
    assert built.returncode == 0, output


class LineProcess:
    """A process that prints lines of JSON."""

    def __init__(self, command: list[str], directory: Path) -> None:
        directory.mkdir()
        self._output = directory / "output"
        with self._output.open("w") as output:
            # Clients write their logs into the working directory.
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment(), stdout=output, stderr=subprocess.STDOUT
            )

    def text(self) -> str:
        """Return the whole output."""
        return self._output.read_text()

    def lines(self) -> list[dict[str, Any]]:
        """Return all complete lines."""
        return [json.loads(line) for line in self.text().splitlines(keepends=True) if line.endswith("\n")]

    @contextmanager
    def running(self) -> Iterator[LineProcess]:
        try:
            yield self
        finally:
            self.process.kill()
            self.process.wait()
