"""Write docs/spark-versions.md from the differences in code: ``python tools/spark_versions_page.py`` (``--check``)."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.spark.versions import DIFFERENCES, NEWEST, OLDEST

PAGE = Path(__file__).parent.parent / "docs" / "spark-versions.md"
_HEAD = """# Versions of Spark

Made by `tools/spark_versions_page.py` from `src/headrace/spark/versions.py`, the only module that asks for Spark's
version. headrace runs with Spark {oldest} to {newest}; [README](../README.md#versions) says which were tested. The
guarantees are the same with each: the plan of each batch is in the store, so a batch that runs again has the same rows.

| feature | since | with older versions |
|---|---|---|
"""


def page() -> str:
    """Return the page's text."""
    rows = (f"| {each.feature} | Spark {_text(each.since)} | {each.before} |\n" for each in DIFFERENCES)
    return _HEAD.format(oldest=_text(OLDEST), newest=_text(NEWEST)) + "".join(rows)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is out of date: run python {sys.argv[0]}")
    PAGE.write_text(page())
