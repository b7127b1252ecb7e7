"""Hostile arguments on the command line: a command works, or ends with one clear message that can be printed."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import headrace
from headrace.cli.main import headrace as program
from headrace.cli.main import main

# Surrogates of arguments that are not UTF-8, huge numbers, JSON that is not a key, a path that is too long.
HOSTILE = ["", "\udcff", "\ud800=\ud800", "9" * 25, "9" * 5_000, "nan", '{"id": "\\ud800"}', "0=nan", "/" + "y" * 5_000]
# Commands that start services and sessions, check the machine, or follow changes.
LEFT_OUT = {"demo", "serve", "bench", "run", "sql", "doctor", "stream", "tail", "ui"}
# Flags without which a command follows changes until it is stopped.
ENDING: dict[tuple[str, ...], list[str]] = {("mirror",): ["--available-now"]}
NAMES = {"table": "t", "queue": "q", "consumer": "c", "tunnel": "tn", "export": "t"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that use a store, with their names."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            if name not in LEFT_OUT:
                yield from commands(inner, (*path, name))
    else:
        yield path, command


COMMANDS = dict(commands(program))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a table, a queue and a consumer."""
    directory = tmp_path_factory.mktemp("cli") / "store"
    with headrace.open(directory, create=True, synchronous="off") as store:
        store.create_table("t", {"id": "string", "n": "long"}, "id").put({"id": "a"})
        store.create_queue("q", {"id": "string"}).append({"id": "a"})
        store.create_consumer("c")
        store.register_consumer("q", "c")
    return str(directory)


def arguments(path: tuple[str, ...], command: click.Command, chosen: click.Parameter, value: str) -> list[str]:
    """Return a command line with a value for one parameter, and harmless values for other required ones."""
    options, positions = [], []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            if parameter is chosen or parameter.required:
                name = NAMES.get(str(parameter.name), NAMES[path[0]] if parameter.name == "name" else "1")
                positions.append(value if parameter is chosen else name)
        elif parameter is chosen or parameter.required:
            needed = "id=string" if "column" in str(parameter.name) else "id"
            options += [f"{parameter.opts[-1]}={value if parameter is chosen else needed}"]
    return [*options, "--", *positions]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_commands_with_hostile_arguments_end_with_a_clear_message(
    path: tuple[str, ...], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[path]
    for number, value in enumerate(HOSTILE):
        for parameter in command.params:
            if parameter.name == "store_url" or getattr(parameter, "is_flag", False):
                continue
            printed = io.BytesIO()
            stream = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
            monkeypatch.setattr(sys, "stdout", stream)
            monkeypatch.setattr(sys, "stderr", stream)
            line = [*path, *ENDING.get(path, []), "-s", place, *arguments(path, command, parameter, value)]
            code = main(["--json", *line] if number % 2 else line)
            stream.flush()
            said = printed.getvalue().decode()
            assert code in (0, 1, 2), line
            assert "run it again with --debug" not in said, (line, said)
            assert code == 0 or "error" in said.lower(), (line, said)


def test_a_missing_file_with_any_name_gives_a_clear_message(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x" * 300, "no such\udcff.csv"):
        assert main(["table", "load", "-s", place, "t", str(tmp_path / name)]) in (1, 2)
        assert "--debug" not in capsys.readouterr().err
