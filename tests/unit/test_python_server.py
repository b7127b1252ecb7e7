"""The server that forks Spark's Python processes: a process ends with its launcher."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.startup import python_server


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with python_server.serving(tmp_path_factory.mktemp("python")) as path:
        yield str(path)


# Spark ends a process that it no longer needs by the first signal, or a process that does not answer by the second.
@pytest.mark.parametrize("end", [subprocess.Popen.terminate, subprocess.Popen.kill], ids=["terminate", "kill"])
def test_a_launcher_that_is_ended_ends_its_process(
    launcher: str, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    command = [launcher, "-m", "code", "-q"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"print('runs', flush=True)\n")
        process.stdin.flush()
        while b"runs" not in process.stdout.readline():
            pass
        end(process)
        # Pipes end with the last process that has them open. The standard input is still open.
        assert b"runs" not in process.stdout.read()


def test_a_launcher_ends_with_the_status_of_its_process(launcher: str) -> None:
    ended = subprocess.run([launcher, "-m", "code", "-q"], input=b"exit(7)\n", check=False)
    assert ended.returncode == 7
