"""The code of docs/iceberg.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import claimed, run_code


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    printed: list[str] = []
    for language, text in claimed("docs/iceberg.md", "tests/lake/test_iceberg_document.py"):
        if language == "text":
            assert printed == text.splitlines()
        else:
            printed = run_code(text.replace("/data/lake", f"{tmp_path}/lake"), capsys, names)
