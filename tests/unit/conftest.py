"""Fixtures of the tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main

Run = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """The address of a store that does not exist yet."""
    return str(tmp_path / "shop")


@pytest.fixture
def run(store: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with --json on the store; return its result, or its lines if there are several."""

    def run_command(*arguments: str, code: int = 0) -> Any:
        assert main(["-s", store, "--json", *arguments]) == code, capsys.readouterr().err
        printed = capsys.readouterr()
        lines = [json.loads(line) for line in (printed.err if code else printed.out).splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return run_command
