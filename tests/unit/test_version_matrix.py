"""The matrix of versions: a run tells whether all combinations passed."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tools import version_matrix


@pytest.mark.parametrize(
    ("passed", "pythons", "expected"),
    [
        ((True, True), None, True),
        ((True, True), ["3.11", "3.12"], True),
        ((True, True), ["3.11", "3.14"], False),
        ((False, True), None, False),
        ((None, True), None, False),
        ((True, False), None, False),
    ],
)
def test_a_run_passes_if_all_its_combinations_do(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passed: tuple[bool | None, bool],
    pythons: list[str] | None,
    expected: bool,
) -> None:
    def on_spark(spark: str, python: str, interpreter: str) -> dict[str, Any]:
        if passed[0] is None:
            raise subprocess.CalledProcessError(1, "uv")
        return {"passed": passed[0], "date": "2026-11-26"}

    monkeypatch.setattr(version_matrix, "RESULTS", tmp_path / "versions.json")
    monkeypatch.setattr(version_matrix, "interpreter_of", lambda python, _: None if python == "3.14" else "python")
    monkeypatch.setattr(version_matrix, "test_spark", on_spark)
    monkeypatch.setattr(version_matrix, "test_postgres", lambda _: {"passed": passed[1], "date": "2026-11-26"})
    arguments = argparse.Namespace(spark=["4.3"], python=pythons, postgres=["18"], interpreter=[])
    assert version_matrix.run(arguments) is expected
    results = json.loads((tmp_path / "versions.json").read_text())
    table = version_matrix.table(results)
    assert ("failed" in table) is not (passed == (True, True))
    assert "| Spark 4.3 |" in table
