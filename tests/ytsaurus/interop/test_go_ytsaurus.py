"""YTsaurus' Go client in its default configuration works with the endpoint."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from yt.wrapper import YtClient

from tests.interop.go_programs import built
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

SOURCE = Path(__file__).parent / "go_ytsaurus"
PROGRAMS = re.findall(r'^\t"(\w+)": +\w+,$', (SOURCE / "main.go").read_text(), re.MULTILINE)
PATIENCE = 120.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(SOURCE, tmp_path_factory.mktemp("go") / "ytsaurus")


@pytest.mark.parametrize("name", PROGRAMS)
def test_go_programs_get_the_expected_answers(
    name: str, program: Path, yt_server: YtServer, client: YtClient, home: str
) -> None:
    host, port = yt_server.address
    ran = subprocess.run(
        [str(program), name, home],
        env={**os.environ, "YT_PROXY": f"{host}:{port}", "YT_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_every_go_program_is_run() -> None:
    assert len(PROGRAMS) == 14
