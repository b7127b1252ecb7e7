"""Programs with Tablestore's official clients in Go and Java, unchanged, against the endpoint."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import headrace
from tests.interop.programs import LineProcess, built_with_go, built_with_maven, environment
from tests.tablestore.interop.conftest import Endpoint

COMMON = ["tables", "rows", "conditions", "batches", "ranges", "numbered", "times", "errors", "tunnels"]
GO = [*COMMON, "versions"]
JAVA = [*COMMON, "writer", "timeseries"]
PATIENCE = 120.0
ROWS = 60
# Beside the results of scenarios: the traces of exceptions, for the report of a test that fails.
TRACES = "traces"


@pytest.fixture(scope="module")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return built_with_go("go_tablestore", tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module")
def java_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return built_with_maven("java_tablestore", "headrace.Main", tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module")
def java_results(
    java_program: list[str], endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The result of each scenario in Java. One process runs all scenarios."""
    done = subprocess.run(
        [*java_program, endpoint.url, "java", "all"],
        cwd=tmp_path_factory.mktemp("java-run"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results: dict[str, str] = {}
    for line in done.stdout.splitlines():
        scenario, _, result = line.partition(": ")
        results[scenario] = f"{results[scenario]}\n{result}" if scenario in results else result
    results[TRACES] = done.stderr
    return results


@pytest.mark.parametrize("scenario", GO)
def test_the_go_client_finds_what_it_expects(
    go_program: list[str], endpoint: Endpoint, tmp_path: Path, scenario: str
) -> None:
    command = [*go_program, endpoint.url, f"go-{scenario}", scenario]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@pytest.mark.parametrize("scenario", JAVA)
def test_the_java_client_finds_what_it_expects(java_results: dict[str, str], scenario: str) -> None:
    assert java_results.get(scenario) == "ok", java_results[TRACES]


def check_take_over(program: list[str], endpoint: Endpoint, instance: str, directory: Path) -> None:
    """Start two workers of a tunnel, kill one, and assert that every change arrives."""
    with headrace.open(str(endpoint.root / instance), create=True) as store, ExitStack() as stack:
        table = store.create_table("T", {"p": "string", "k": "long", "value": "long"}, ["p", "k"])
        table.put([{"p": f"p{number}", "k": number, "value": 0} for number in range(ROWS)])
        table.split()
        tunnel = store.create_tunnel("T", "all")
        command = [*program, endpoint.url, instance, "worker", "T", "all"]
        workers = [stack.enter_context(LineProcess(command, directory / str(place)).running()) for place in range(2)]
        written = {(number, 0) for number in range(ROWS)}

        def write(value: int) -> None:
            table.update([{"p": f"p{number}", "k": number, "value": value} for number in range(ROWS)])
            written.update((number, value) for number in range(ROWS))

        def wait(what: str) -> None:
            ends = time.monotonic() + PATIENCE
            while True:
                seen = {(line["k"], line["value"]) for worker in workers for line in worker.lines()}
                readers = {
                    each.client for each in tunnel.describe().channels if each.client and each.channel.state == "open"
                }
                if what == "shared" and len(readers) == 2:
                    return
                if what == "everything" and seen >= written:
                    assert seen == written
                    return
                assert time.monotonic() < ends, (what, written - seen, readers, [each.text() for each in workers])
                time.sleep(0.2)

        write(1)
        wait("everything")
        wait("shared")
        write(2)
        workers[0].process.kill()
        write(3)
        wait("everything")


def test_a_worker_in_go_takes_over_from_one_that_was_killed(
    go_program: list[str], endpoint: Endpoint, tmp_path: Path
) -> None:
    check_take_over(go_program, endpoint, "go-workers", tmp_path)


def test_a_worker_in_java_takes_over_from_one_that_was_killed(
    java_program: list[str], endpoint: Endpoint, tmp_path: Path
) -> None:
    check_take_over(java_program, endpoint, "java-workers", tmp_path)
