"""The commands of the prompt of `headrace sql`, and its completion."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from headrace.cli.prompt_commands import Command, Describe, Exit, Help, Watch, parse_command
from headrace.cli.prompt_completion import completions
from headrace.cli.prompt_lines import history_file, is_complete
from headrace.errors import SqlError


class Names:
    """The names of a workspace."""

    def tables(self) -> list[str]:
        return ["orders", "big.orders", "odd name"]

    def scans(self) -> list[str]:
        return ["orders_now"]

    def streams(self) -> list[str]:
        return ["totals"]

    def column_names(self, name: str) -> list[str]:
        return {"orders": ["OrderId", "price", "order by"], "orders_now": ["spent"]}.get(name, [])


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("help", Help()),
        ("HELP;", Help()),
        ("\\?", Help()),
        ("exit", Exit()),
        ("quit ;", Exit()),
        ("\\q", Exit()),
        ("\\d", Describe(None)),
        ("\\d shop.orders", Describe("shop.orders")),
        ("\\d `odd`", Describe("odd")),
        ("\\watch", Watch(2.0)),
        ("\\watch 0.5", Watch(0.5)),
        ("help me;", None),
        ("SELECT 1;", None),
        ("", None),
    ],
)
def test_commands_are_told_from_statements(text: str, command: Command | None) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize("text", ["\\", "\\x", "\\d a b", "\\watch now", "\\watch 0", "\\watch nan", "\\watch 1 2"])
def test_an_unknown_command_is_an_error_and_needs_no_semicolon(text: str) -> None:
    assert is_complete(text)
    with pytest.raises(SqlError, match=r"no such command|number of seconds"):
        parse_command(text)


@pytest.mark.parametrize(
    ("text", "length", "words"),
    [
        ("\\", 1, ["\\?", "\\d", "\\q", "\\watch"]),
        ("\\w", 2, ["\\watch"]),
        ("SELECT * FROM ord", 3, ["orders", "orders_now"]),
        ("select * from ", 0, ["`odd name`", "big.orders", "orders", "orders_now"]),
        ("SELECT pri", 3, []),
        ("SELECT price, Or FROM orders WHERE pri", 3, ["price"]),
        ("SELECT * FROM orders WHERE orders.o", 1, ["`order by`", "OrderId"]),
        ("SELECT sp FROM orders_now WHERE sp", 2, ["spent"]),
        ("DROP STREAM t", 1, ["totals"]),
        ("sho", 3, ["show consumers", "show producers", "show queues", "show scans", "show streams", "show tables",
                    "show tunnels"]),
        ("SELECT 'ord", 0, []),
    ],
)  # fmt: skip
def test_words_and_names_are_completed(text: str, length: int, words: list[str]) -> None:
    replaced, found = completions(text, Names())
    assert found == words
    assert replaced == length or not words


def test_a_long_word_is_completed_at_once() -> None:
    begin = time.process_time()
    assert "orders" in completions("a" * 100_000 + " ord", Names())[1]
    # A search for a name at the end of the text takes a minute.
    assert time.process_time() - begin < 5


def test_only_the_user_reads_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = history_file("sql_history")
    assert file is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    assert history_file("sql_history") is None
