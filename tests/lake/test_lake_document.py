"""The code of docs/lake.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.documents import absolute, claimed, run_code, run_shell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_page_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, rows = tmp_path / "data" / "lake", pa.table({"id": [1, 2]})
    write_deltalake(str(lake / "events"), rows)
    write_deltalake(str(lake / "clicks"), rows, configuration={"delta.appendOnly": "true"})
    names: dict[str, object] = {}
    printed: list[str] = []
    for language, text in claimed("docs/lake.md", "tests/lake/test_lake_document.py"):
        here = absolute(text, tmp_path).replace("/data/lake", f"{tmp_path}/data/lake")
        if language == "python":
            printed = run_code(here, capsys, names)
        elif language == "text":
            assert printed == text.splitlines()
        else:
            output = run_shell(here.replace("/data/lake/", "/data/lake"), tmp_path)
            assert ("all keys are different" if "lake check" in here else "orders") in output
