"""The code of docs/ducklake.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.documents import absolute, claimed, run_code
from tests.lake.ducklakes import database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_page_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = database()
    names: dict[str, object] = {}
    printed: list[str] = []
    for language, text in claimed("docs/ducklake.md", "tests/lake/test_ducklake_document.py"):
        if language == "text":
            assert printed == text.splitlines()
            continue
        here = text.replace("postgresql://postgres@localhost/shop", url).replace("/data/lake", f"{tmp_path}/lake")
        printed = run_code(absolute(here, tmp_path), capsys, names)
