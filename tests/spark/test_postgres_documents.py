"""The example and the page on PostgreSQL run on a real server, and print what the page shows."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.conformance import serving
from tests.spark.documents import ROOT


@pytest.mark.usefixtures("spark")
def test_the_film_rental_keeps_its_revenue_equal_to_that_of_postgresql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "postgres" / "rentals.py"))
    assert example["main"](serving.postgres_database("rentals"), tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "rows that existed: 1560"
    assert [line.split() for line in printed[1:-1]] == [
        ["film", "update_postimage", "1"],
        ["film", "update_preimage", "1"],
        ["payment", "delete", "10"],
        ["payment", "insert", "80"],
        ["payment", "update_postimage", "1"],
        ["payment", "update_preimage", "1"],
        ["rental", "insert", "80"],
        ["rental", "update_postimage", "200"],
        ["rental", "update_preimage", "200"],
    ]
