"""What the job ``totals`` must have written."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tests.clusters.standalone import Cluster


def expected(rows: int) -> dict[str, tuple[int, int]]:
    """Return the clicks and milliseconds of each user after so many rows."""
    totals: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for number in range(rows):
        user = f"u{number % 10}"
        clicks, ms = totals[user]
        totals[user] = clicks + 1, ms + number
    return dict(totals)


def read_totals(cluster: Cluster) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
    """Return the clicks and milliseconds of each user, and the offsets of the consumer."""
    read: dict[str, Any] = json.loads(cluster.run_job("tables", {"read": True}).stdout)
    return {row["user"]: (row["clicks"], row["ms"]) for row in read["totals"]}, read["offsets"]
