"""The code of the documents, for tests that run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
# The relative paths in the documents. Spark's processes resolve them in the directory in which Spark was started.
_RELATIVE = re.compile(r'"(shop|checkpoints|copy|workspace)\b')


def blocks_of(text: str) -> list[tuple[str, str]]:
    """Return the language and the text of each code block that names its language, in order."""
    return [
        (language, re.sub(f"^{indentation}", "", block, flags=re.MULTILINE))
        for indentation, language, block in _BLOCK.findall(text)
    ]


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a language in a document."""
    return [block for each, block in blocks_of((ROOT / document).read_text()) if each == language]


def code_of(document: str, language: str, directory: Path) -> str:
    """Return all blocks of a language in a document, with ``directory`` before relative paths."""
    return _RELATIVE.sub(rf'"{directory}/\1', "\n".join(blocks(document, language)))


def run_code(code: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run Python code in this process, on its Spark session; return the lines that it prints."""
    capsys.readouterr()
    exec(compile(code, "document", "exec"), {"__name__": "document"})
    return capsys.readouterr().out.splitlines()
