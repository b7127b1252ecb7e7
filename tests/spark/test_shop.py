"""The example of a shop: eight views are equal to the batch answer, and the page shows that they change."""

from __future__ import annotations

import html
import json
import re
import runpy
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.cli.main import main
from headrace.testing.effort import THOROUGH
from headrace.ui.server import UiThread
from tests.documents import ROOT

QUICK = ("revenue", "order_counts")


@pytest.mark.usefixtures("spark")
def test_the_views_of_the_shop_are_equal_and_the_page_shows_them_change(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / "shop" / "run.py"))
    views = [view for view in example["VIEWS"] if THOROUGH or view.name in QUICK]
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        shop, streams = example["Shop"](store), headrace.sql(spark, tmp_path)
        page = UiThread(store, tmp_path, 0)

        def text(path: str) -> str:
            with urllib.request.urlopen(page.address + path, timeout=30) as answer:
                return html.unescape(answer.read().decode())

        try:
            example["start"](store, streams, views)
            before: dict[str, Any] = {}
            pages: list[str] = []
            for _ in range(2):
                example["settle"](streams, len(views))
                assert example["compare"](store, before, views)
                pages.append(text("/table/rows?name=revenue"))
                shop.change()
            assert pages[0] != pages[1]
            shown = text("/stream?name=revenue")
            assert all(view.name in text("/") for view in views)
        finally:
            streams.stop()
            page.stop()
        assert re.search(r"revenue_items by \(ord\)</th><td class=\"num\">\d{3}</td>", shown)
        assert "Gather" in shown
    capsys.readouterr()
    assert main(["stream", "describe", "order_counts", "-w", str(tmp_path), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert {each["state"] for each in described["state_tables"]} >= {"order_counts_orders by (customer)"}
    assert all(each["rows"] > 0 for each in described["state_tables"])
    assert described["gather_seconds"] > 0
