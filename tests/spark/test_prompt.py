"""The prompt of `headrace sql` in a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import headrace
from tests.terminal import Terminal

PROMPT = "headrace>"


def test_a_person_works_at_the_prompt(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "shop", create=True) as store:
        store.create_table("Orders", {"OrderId": "string", "amount": "double"}, "OrderId").put(
            [{"OrderId": "o1", "amount": 2.5}]
        )
    environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "headrace.cli.main", "sql", "--master", "local[2]"]
    with Terminal(command, environment, tmp_path) as terminal:
        started = terminal.expect(PROMPT, 120)
        assert "log4j" not in started
        assert "WARN " not in started

        def run(text: str, result: str) -> str:
            terminal.type(f"{text}\r")
            return terminal.expect(result) + terminal.expect(PROMPT)

        run("help", "end the prompt and its streams")
        run("\\d", "The workspace has no tables")
        run("\\nothing", "no such command of the prompt")
        run("SELEC 1;", "error: ")
        run("CREATE TABLE orders USING headrace OPTIONS (store = 'shop', table = 'Orders');", "orders")
        # A statement of two lines, in which Tab completes the table and the column.
        terminal.type("SELECT *\rFROM orders WHERE amo\t")
        terminal.expect("unt")
        run(" > 2;", " 2.5 ")
        described = run("\\d orders", "double")
        assert "OrderId" in described
        terminal.type("SELECT count(*) FROM range(1000000000000) WHERE sha2(cast(id AS string), 512) = 'x';\r")
        terminal.expect("Running SELECT count(*)")
        terminal.type("\x03")
        terminal.expect("Cancelled.")
        terminal.expect(PROMPT)
        run("SELECT 40 + 2 AS answer;", " 42 ")
        terminal.type("\\watch 0.1\r")
        for _ in range(3):
            terminal.expect(" 42 ")
        terminal.type("\x03")
        terminal.expect(PROMPT)
        terminal.type("quit\r")
        assert terminal.wait() == 0
    history = (tmp_path / "state" / "headrace" / "sql_prompt_history").read_text()
    assert "SELECT 40 + 2 AS answer;" in history
