"""The example and the page on PostgreSQL run on a real server, and print what the page shows."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterable
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import main
from tests.conformance import serving
from tests.documents import ROOT, blocks_of

_URL = "postgresql://postgres@localhost/shop"
_FIVE_MINUTES = re.compile(r"^## Five minutes.*?(?=^## )", re.DOTALL | re.MULTILINE)
# Identifiers, times of commits, and positions of the log.
_VARIES = re.compile(r"[0-9a-f]{32}|\d{4}-\d\d-\d\d \d\d:\S+|\b\d{6,}\b")


def words(lines: Iterable[str]) -> list[list[str]]:
    """Return the words of lines, without what differs between two runs: widths of columns, and the above."""
    found = [_VARIES.sub("…", re.sub("─+", "─", line)).split() for line in lines]
    return [each for each in found if each]


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


def test_the_five_minutes_of_the_page_on_postgresql_print_what_it_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serving.postgres_database("five_minutes")
    monkeypatch.setenv("HEADRACE_STORE", url)
    section = _FIVE_MINUTES.search((ROOT / "docs" / "postgres.md").read_text())
    assert section is not None
    printed: list[str] = []
    shown = 0
    for language, block in blocks_of(section[0]):
        code = block.replace(_URL, url)
        if language == "text":
            assert words(printed) == words(code.splitlines())
            shown, printed = shown + 1, []
            continue
        if language == "sql":
            with psycopg.connect(url, autocommit=True) as server:
                server.execute(code)
        elif language == "sh":
            for line in code.splitlines():
                if line.startswith("headrace "):
                    assert main(shlex.split(line)[1:]) == 0
        else:
            exec(compile(code, "document", "exec"), {"__name__": "document"})
        printed += capsys.readouterr().out.splitlines()
    assert printed == []
    assert shown == 5
