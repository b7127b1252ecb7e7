"""The code of the documents, for tests that run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance import serving
from tests.document_account import ACCOUNT

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
# The relative paths in the documents. Spark's processes resolve them in the directory in which Spark was started.
_RELATIVE = re.compile(r'"(shop|checkpoints|copy|workspace)\b')


class Block(NamedTuple):
    """A code block: its language, empty without one, and its text."""

    language: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the code blocks of a text, in order."""
    return [
        Block(language, re.sub(f"^{indentation}", "", block, flags=re.MULTILINE))
        for indentation, language, block in _BLOCK.findall(text)
    ]


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a language in a document."""
    return [block.text for block in blocks_of((ROOT / document).read_text()) if block.language == language]


def claims_of(document: str) -> list[tuple[Block, str]]:
    """Return the blocks of a document, in order, each with the test that runs it, or the reason why none does.

    Raises:
        AssertionError: the account does not have exactly the blocks of the document.
    """
    found = blocks_of((ROOT / document).read_text())
    claims = ACCOUNT.get(document, {})
    assert set(claims) == {block.language for block in found}, document
    each = {}
    for language, claim in claims.items():
        count = sum(block.language == language for block in found)
        each[language] = [claim] * count if isinstance(claim, str) else list(claim)
        assert len(each[language]) == count, f"{document} has {count} blocks of {language!r}"
    return [(block, each[block.language].pop(0)) for block in found]


def claimed(document: str, test: str) -> list[Block]:
    """Return the blocks of a document that the account gives to a test file, in order."""
    return [block for block, claim in claims_of(document) if claim == test]


def code_of(document: str, language: str, directory: Path) -> str:
    """Return all blocks of a language in a document, with ``directory`` before relative paths."""
    return absolute("\n".join(blocks(document, language)), directory)


def absolute(code: str, directory: Path) -> str:
    """Return code with ``directory`` before relative paths."""
    return _RELATIVE.sub(rf'"{directory}/\1', code)


def run_code(code: str, capsys: pytest.CaptureFixture[str], names: dict[str, object] | None = None) -> list[str]:
    """Run Python code in this process, on its Spark session; return the lines that it prints.

    Args:
        names: the variables of the code before it, which are changed.
    """
    capsys.readouterr()
    variables = {} if names is None else names
    variables.setdefault("__name__", "document")
    exec(compile(code, "document", "exec"), variables)
    return capsys.readouterr().out.splitlines()


def run_shell(script: str, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a script in bash, with the store ``shop`` as default; return its output. Packages are installed already.

    The program ``headrace`` runs in a forked process: starting it takes a third of a second.
    """
    lines = [line for line in script.splitlines() if not line.startswith("pip install")]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | {
        "PATH": f"{serving.programs()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADRACE_STORE": "shop",
        **(environment or {}),
    }
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
