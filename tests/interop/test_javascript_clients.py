"""The JavaScript clients of YTsaurus and Tablestore, unchanged and in their default settings, against the endpoints."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.interop.programs import HERE, environment, installed_with_npm
from tests.tablestore.interop.conftest import Endpoint
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

PATIENCE = 120.0


def scenarios(program: str) -> list[str]:
    """Return the names of the scenarios in a program."""
    return re.findall(r"^    async (\w+)\(\) \{$", (HERE / "javascript" / program).read_text(), re.MULTILINE)


def results(command: list[str], directory: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Run a program, and return the result of each of its scenarios."""
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=PATIENCE)
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert found, done.stderr
    return found


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_with_npm("javascript", tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="module")
def of_ytsaurus(programs: Path, yt_server: YtServer) -> dict[str, str]:
    """One process runs all scenarios."""
    home = "//tmp/javascript"
    assert yt_server.call("POST", "create", {"path": home, "type": "map_node"}).status == 200
    host, port = yt_server.address
    return results(["node", "ytsaurus.js", f"{host}:{port}", home], programs, {**os.environ, "YT_TOKEN": TOKEN})


@pytest.fixture(scope="module")
def of_tablestore(programs: Path, endpoint: Endpoint) -> dict[str, str]:
    return results(["node", "tablestore.js", endpoint.url, "javascript"], programs, environment())


@pytest.mark.parametrize("scenario", scenarios("ytsaurus.js"))
def test_the_wrapper_of_ytsaurus_gets_the_expected_answers(scenario: str, of_ytsaurus: dict[str, str]) -> None:
    assert of_ytsaurus.get(scenario) == "ok"


@pytest.mark.parametrize("scenario", scenarios("tablestore.js"))
def test_the_client_of_tablestore_gets_the_expected_answers(scenario: str, of_tablestore: dict[str, str]) -> None:
    assert of_tablestore.get(scenario) == "ok"
