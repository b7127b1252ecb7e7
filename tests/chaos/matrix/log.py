"""The log of storms: one line of JSON for each storm that ran to its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos.matrix.cells import Cell

DOCUMENTED = Path(__file__).parents[3] / "docs" / "logs" / "storms.jsonl"


@dataclass(frozen=True)
class Entry:
    """A storm that ran to its end.

    Attributes:
        kills: the kills, or the faults, of the storm.
        batches: the batches that the query committed.
        replayed: of these, the batches that ran again after a restart of the query.
        tasks: tasks that failed and were repeated within their batch; those of killed drivers are not counted.
        rows: the changes or rows that the query read, or would read if each was read once.
        lost: expected rows of the result that are missing.
        doubled: rows of the result that are not expected, among them second ones.
        out_of_order: rows of an append-only result before an earlier one of their stream; rows of a table with an older
            value than the last one.
        failed: why the storm failed, if not by the rows.
    """

    seed: int
    victim: str
    query: str
    store: str
    kills: int
    batches: int
    replayed: int
    tasks: int
    rows: int
    lost: int
    doubled: int
    out_of_order: int
    seconds: float
    versions: str
    failed: str = field(default="")

    @property
    def cell(self) -> Cell:
        """The cell of the storm."""
        return Cell(self.victim, self.query, self.store)

    @property
    def held(self) -> bool:
        """Whether the result was exactly the expected one."""
        return not (self.lost or self.doubled or self.out_of_order or self.failed)


def read(path: Path = DOCUMENTED) -> list[Entry]:
    """Return the storms of a log; those of a log that does not exist are none."""
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def append(entry: Entry, path: Path) -> None:
    """Append a storm. Each line is one write, so that two runs can share a log."""
    values = {name: value for name, value in asdict(entry).items() if name != "failed" or value}
    with path.open("a") as file:
        file.write(json.dumps(values) + "\n")


def kills_by_cell(entries: Iterable[Entry]) -> Counter[Cell]:
    """Return the kills in each cell, of storms that held or failed."""
    counts: Counter[Cell] = Counter()
    for entry in entries:
        counts[entry.cell] += entry.kills
    return counts
