"""Names that the shell completes, and the lists of commands in help texts."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

import headrace as package
from headrace.cli.app import App
from headrace.cli.main import headrace, main
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace

Complete = Callable[..., list[str]]


@pytest.fixture
def complete(store: str, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return the words that the shell offers after a command line; the last word is incomplete."""
    # A machine under load needs more than 2 seconds.
    monkeypatch.setattr("headrace.cli.completion._SECONDS", 60.0)
    with package.open(store, create=True) as opened:
        for name in ("orders", "others", "__headrace_state"):
            opened.create_table(name, {"id": "long"}, "id")
        opened.create_queue("clicks", {"id": "long"})
        opened.create_consumer("//c")
        opened.create_tunnel("orders", "stats")
    registry = StreamRegistry(Workspace(Path(store).parent))
    registry.record_start("totals", script="", fingerprint="", target="t", checkpoint="c")

    def words(*line: str, url: str | None = store) -> list[str]:
        completion = ShellComplete(headrace, {"obj": App(store_url=url)}, "headrace", "_HEADRACE_COMPLETE")
        return [item.value for item in completion.get_completions(list(line[:-1]), line[-1])]

    return words


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (("table", "describe", ""), ["orders", "others"]),
        (("table", "scan", "ord"), ["orders"]),
        (("table", "diff", "orders", "o"), ["orders", "others"]),
        (("table", "create", "o"), []),
        (("load", "x.csv", "--table", "ot"), ["others"]),
        (("load", "x.csv", "--queue", ""), ["clicks"]),
        (("queue", "read", "c"), ["clicks"]),
        (("consumer", "describe", ""), ["//c"]),
        (("tunnel", "describe", "s"), ["stats"]),
        (("tunnel", "create", "ord"), ["orders"]),
        (("tunnel", "list", "-t", "x"), []),
        (("export", ""), ["orders", "others", "clicks"]),
    ],
)
def test_names_of_the_store_are_offered(complete: Complete, line: tuple[str, ...], expected: list[str]) -> None:
    assert complete(*line) == expected


def test_names_are_those_of_a_store_with_its_options(complete: Complete) -> None:
    assert complete("table", "scan", "--store-option", "synchronous=off", "ord") == ["orders"]
    assert complete("table", "scan", "--store-option", "synchronous=no", "ord") == []


def test_streams_of_the_workspace_are_offered(complete: Complete, store: str) -> None:
    assert complete("stream", "describe", "-w", str(Path(store).parent), "t") == ["totals"]
    assert complete("stream", "describe", "-w", store, "t") == []


def test_the_store_of_the_command_line_is_asked(complete: Complete, store: str) -> None:
    assert complete("table", "describe", "-s", store, "ord", url=None) == ["orders"]
    assert complete("-s", store, "table", "describe", "ord", url=None) == ["orders"]


def test_errors_offer_nothing_and_print_nothing(
    complete: Complete, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.completion._SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = f"postgresql://127.0.0.1:{server.getsockname()[1]}/shop?connect_timeout=1&headrace.support.retries=0"
        for url in (None, str(tmp_path / "nothing"), "nonsense://x", silent):
            assert complete("table", "describe", "", url=url) == []
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


def test_a_shell_gets_names(complete: Complete, store: str) -> None:
    words = {"COMP_WORDS": "headrace table describe ord", "COMP_CWORD": "3", "_HEADRACE_COMPLETE": "bash_complete"}
    done = subprocess.run(
        # As in `complete`.
        [sys.executable, "-c", "from headrace.cli import completion, main; completion._SECONDS = 60; main.main()"],
        env={**os.environ, **words, "HEADRACE_STORE": store},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("plain,orders\n", "", 0)


def test_help_shows_the_first_sentence_of_each_command_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [[], *([name] for name, command in headrace.commands.items() if isinstance(command, click.Group))]
    for path in groups:
        assert main([*path, "--help"]) == 0
        _, _, commands = capsys.readouterr().out.partition("Commands:")
        assert commands
        assert "..." not in commands
        assert "…" not in commands
