"""The code of the documents, for tests that run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The relative paths in the documents. Spark's processes resolve them in the directory in which Spark was started.
_RELATIVE = re.compile(r'"(shop|checkpoints|copy|workspace)\b')


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a language in a document."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def code_of(document: str, language: str, directory: Path) -> str:
    """Return all blocks of a language in a document, with ``directory`` before relative paths."""
    return _RELATIVE.sub(rf'"{directory}/\1', "\n".join(blocks(document, language)))


def run_code(code: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run Python code in this process, on its Spark session; return the lines that it prints."""
    capsys.readouterr()
    exec(compile(code, "document", "exec"), {"__name__": "document"})
    return capsys.readouterr().out.splitlines()
