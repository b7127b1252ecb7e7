"""What the job ``totals`` must have written."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from typing import Any

from tests.clusters.hosts import wait_until
from tests.clusters.standalone import Site

Totals = dict[str, tuple[int, int]]


def expected(rows: int) -> Totals:
    """Return the clicks and milliseconds of each user after so many rows."""
    totals: Totals = defaultdict(lambda: (0, 0))
    for number in range(rows):
        clicks, ms = totals[f"u{number % 10}"]
        totals[f"u{number % 10}"] = clicks + 1, ms + number
    return dict(totals)


class Tables:
    """The tables of the jobs, which a process on the host of the store reads and writes."""

    def __init__(self, site: Site) -> None:
        self._process = site.talk_to_job("tables", {"create": True}, host=site.store)
        self.rows = 0

    def append(self, count: int) -> None:
        """Append the next rows to the queue."""
        self._send({"append": [self.rows, self.rows + count]})
        self.rows += count

    def read(self) -> tuple[Totals, list[int], dict[str, dict[str, int]]]:
        """Return the totals, the copied numbers in their order, and the offsets of both consumers."""
        self._send({"read": True})
        assert self._process.stdout is not None
        read: dict[str, Any] = json.loads(self._process.stdout.readline())
        return {row["user"]: (row["clicks"], row["ms"]) for row in read["totals"]}, read["copied"], read["offsets"]

    def clicks(self) -> int:
        """Return the number of rows in the totals."""
        return sum(clicks for clicks, _ in self.read()[0].values())

    def wait_for_all(self, driver: subprocess.Popen[bytes], what: str, seconds: float) -> None:
        """Wait until both jobs have all rows, and check that they have each once."""
        wait_until(lambda: self.is_complete() or driver.poll() is not None, what, seconds)
        assert driver.poll() is None, f"the driver has ended: {what}"
        totals, copied, _ = self.read()
        assert totals == expected(self.rows), what
        assert sorted(copied) == list(range(self.rows)), what

    def is_complete(self) -> bool:
        """Return whether both consumers are at the end of the queue."""
        ends = {"0": (self.rows + 1) // 2, "1": self.rows // 2}
        return all(offsets == ends for offsets in self.read()[2].values())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _send(self, action: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(action) + "\n")
        self._process.stdin.flush()
