"""The cells of the matrix, the cells that make no sense, and the number of kills in each."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import NamedTuple

VICTIMS = ("driver", "worker", "jvm", "writer", "endpoint", "database")
FAULTS = ("full disk", "clock jump", "cut network")
QUERIES = ("stateless", "window", "dedup", "join", "readAs=table", "several tables", "mirror")
STORES = ("embedded", "tablestore", "ytsaurus", "postgres")
# Kills in each cell of 1,000, in the order in which cells are run. The death of a driver or of Java costs a start of
# Spark, that of a worker milliseconds.
WEIGHTS = {
    "worker": 18, "writer": 14, "database": 10, "driver": 2, "jvm": 2, "endpoint": 8,
    "full disk": 3, "clock jump": 3, "cut network": 5,
}  # fmt: skip
# More kills need more time than a part of a run has.
MOST_KILLS_OF_A_STORM = 20
_ENDPOINTS = ("tablestore", "ytsaurus")
# The rows of its tables are kept beside the target, in one transaction with it.
_NEEDS_TRANSACTIONS = "several tables"


class Cell(NamedTuple):
    """A kind of process that is killed, or a fault; a query that runs meanwhile; and the store of its results."""

    victim: str
    query: str
    store: str

    @property
    def is_fault(self) -> bool:
        """Whether the victim is not a process."""
        return self.victim in FAULTS


def makes_sense(cell: Cell) -> bool:
    """Return whether a cell can be run.

    Only endpoints of Tablestore and YTsaurus are endpoints, and only PostgreSQL is a database with a process of its
    own: the embedded store is a library in each process. Where there is no network, it cannot be cut. The clock of
    PostgreSQL is that of the machine, which a test does not change; the disk of its server is not filled. A query over
    several tables needs a target in an embedded store or in PostgreSQL.
    """
    if cell.query == _NEEDS_TRANSACTIONS and cell.store in _ENDPOINTS:
        return False
    match cell.victim:
        case "endpoint":
            return cell.store in _ENDPOINTS
        case "database":
            return cell.store == "postgres"
        case "cut network":
            return cell.store != "embedded"
        case "full disk" | "clock jump":
            return cell.store != "postgres"
        case _:
            return True


def cells(victims: Iterable[str]) -> list[Cell]:
    """Return all cells of kinds of victims that make sense."""
    found = (Cell(victim, query, store) for victim in victims for query in QUERIES for store in STORES)
    return [cell for cell in found if makes_sense(cell)]


def plan(kills: int) -> dict[Cell, int]:
    """Return the number of kills, or of faults, in each cell, in the order in which cells are run.

    Args:
        kills: the kills of all cells together; there can be a few more. Each cell has one kill at least.
    """
    killed = cells(VICTIMS)
    scale = kills / sum(WEIGHTS[cell.victim] for cell in killed)
    counts = {cell: max(1, round(WEIGHTS[cell.victim] * scale)) for cell in killed}
    smallest = min(killed, key=lambda cell: (counts[cell], WEIGHTS[cell.victim]))
    counts[smallest] += max(0, kills - sum(counts.values()))
    counts |= {cell: max(1, round(WEIGHTS[cell.victim] * min(scale, 1))) for cell in cells(FAULTS)}
    # A run that ends early has then run cells of each query and store, and more kills in its time.
    order = sorted(counts)
    random.Random(16).shuffle(order)
    order.sort(key=lambda cell: list(WEIGHTS).index(cell.victim))
    return {cell: counts[cell] for cell in order}
