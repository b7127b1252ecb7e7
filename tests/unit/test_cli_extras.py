"""Commands whose packages are not installed name one `pip install` that suffices."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main


@pytest.mark.parametrize(
    ("line", "hidden", "extras"),
    [
        ("query x -s shop", {"duckdb"}, "query"),
        ("query x -s postgresql://h/d", {"duckdb", "psycopg"}, "query,postgres"),
        ("ui -s yt://h", {"jinja2", "yt"}, "ui,yt"),
        ("demo --ui --store postgresql://h/d", {"jinja2", "psycopg"}, "ui,postgres"),
        ("mcp -s shop", {"mcp"}, "mcp"),
        ("mcp -s postgresql://h/d", {"mcp", "psycopg"}, "mcp,postgres"),
        ("run - --metrics-port 0 --traces", {"prometheus_client", "opentelemetry.sdk"}, "metrics,otel"),
        ("run - --traces", {"pyspark", "opentelemetry.sdk"}, "spark,otel"),
        ("demo --ui", {"pyspark", "jinja2"}, "spark,ui"),
        ("serve --ytsaurus 0 --root .", {"yt.wrapper"}, "serve"),
        ("serve --tablestore 0 --root .", {"google.protobuf"}, "serve"),
    ],
)
def test_one_remedy_names_all_that_is_missing(
    line: str,
    hidden: set[str],
    extras: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find_spec = PathFinder.find_spec

    def find(name: str, path: Any = None, target: Any = None) -> Any:
        return None if name in hidden else find_spec(name, path, target)

    monkeypatch.setattr(PathFinder, "find_spec", find)
    for package in hidden:
        monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 1
    assert f"pip install 'headrace[{extras}]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
