"""The code of docs/iceberg.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import claimed, run_code
from tests.lake.ducklakes import database


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = database()
    names: dict[str, object] = {}
    printed: list[str] = []
    for language, text in claimed("docs/iceberg.md", "tests/lake/test_iceberg_document.py"):
        if language == "text":
            assert printed == text.splitlines()
        else:
            here = text.replace("postgresql://postgres@localhost/shop", url).replace("/data/", f"{tmp_path}/")
            printed = run_code(here, capsys, names)
