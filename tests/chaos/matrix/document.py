"""The figures of docs/reliability.md, from the logs: ``python -m tests.chaos.matrix.document`` writes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.chaos.fuzz.run import ALL as FUZZED
from tests.chaos.fuzz.run import Part
from tests.chaos.fuzz.run import read as read_parts
from tests.chaos.matrix.cells import FAULTS, QUERIES, STORES, VICTIMS, Cell, makes_sense
from tests.chaos.matrix.log import Entry, kills_by_cell
from tests.chaos.matrix.log import read as read_storms

PAGE = Path(__file__).parents[3] / "docs" / "reliability.md"


def figures() -> dict[str, str]:
    """Return the generated parts of the page, by the names of their markers."""
    storms = read_storms()
    return {
        "totals": totals(storms),
        "matrix": matrix(storms),
        "failures": failures(storms),
        "seeds": seeds(storms),
        "fuzz": fuzz(read_parts()),
    }


def totals(storms: Sequence[Entry]) -> str:
    """Return the sums over all storms that ran to their end."""
    rows = []
    for name, victims in (("kills", VICTIMS), ("faults", FAULTS)):
        found = [storm for storm in storms if storm.victim in victims]
        sums = {
            each: sum(getattr(storm, each) for storm in found)
            for each in ("kills", "batches", "replayed", "tasks", "rows", "lost", "doubled", "out_of_order")
        }
        held = sum(storm.held for storm in found)
        hours = sum(storm.seconds for storm in found) / 3600
        figures = [f"{value:,}" for value in sums.values()]
        rows.append(f"| {name} | {len(found)} | {held} | {' | '.join(figures)} | {hours:.1f} |")
    return "\n".join(
        [
            "| storms of | storms | held | kills or faults | batches | replayed | tasks repeated "
            "| rows | lost | doubled | out of order | hours |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


def matrix(storms: Sequence[Entry]) -> str:
    """Return the number of kills or faults in each cell: `—` where a cell makes no sense."""
    counts = kills_by_cell(storm for storm in storms if storm.held)
    sums = [str(sum(counts[cell] for cell in row)) for row in _rows()]
    lines = _by_cell(lambda cell: str(counts[cell]))
    return "\n".join(
        f"{line}{end}|" for line, end in zip(lines, [" all ", "---", *(f" {each} " for each in sums)], strict=True)
    )


def _rows() -> list[list[Cell]]:
    """Return the cells of each victim and store, without rows that make no sense."""
    rows = ([Cell(victim, query, store) for query in QUERIES] for victim in (*VICTIMS, *FAULTS) for store in STORES)
    return [row for row in rows if any(map(makes_sense, row))]


def _by_cell(text: Callable[[Cell], str]) -> list[str]:
    """Return the lines of a table with a text for each cell."""
    lines = [f"| victim | store | {' | '.join(QUERIES)} |", "|---" * (len(QUERIES) + 2) + "|"]
    for row in _rows():
        shown = [text(cell) if makes_sense(cell) else "—" for cell in row]
        lines.append(f"| {row[0].victim} | {row[0].store} | {' | '.join(shown)} |")
    return lines


def seeds(storms: Sequence[Entry]) -> str:
    """Return the versions of the storms, and their seeds by cell: `—` where a cell makes no sense."""
    found: dict[Cell, list[int]] = {}
    for storm in storms:
        found.setdefault(storm.cell, []).append(storm.seed)
    versions = [f"- {count} with {name}" for name, count in Counter(storm.versions for storm in storms).items()]
    return "\n".join(["Storms:", "", *versions, "", *_by_cell(lambda cell: ", ".join(map(str, found.get(cell, []))))])


def failures(storms: Sequence[Entry]) -> str:
    """Return a line for each storm that failed."""
    failed = [storm for storm in storms if not storm.held]
    if not failed:
        return "No storm of the log has failed."
    lines = ["| seed | storm | lost | doubled | out of order | error |", "|---|---|---|---|---|---|"]
    for storm in failed:
        error = storm.failed.partition("\n")[0][:160].replace("|", "\\|")
        cell = f"{' × '.join(storm.cell)}, {storm.kills}"
        lines.append(
            f"| {storm.seed} | {cell} | {storm.lost} | {storm.doubled} | {storm.out_of_order} | {error or '—'} |"
        )
    return "\n".join(lines)


def fuzz(parts: Sequence[Part]) -> str:
    """Return the number of inputs of each parser and endpoint."""
    lines = [
        "| input of | inputs | refused | crashes | slowest, seconds | growth of memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    given: Counter[str] = Counter()
    for name in FUZZED:
        found = [part for part in parts if part.target == name]
        given[name] = sum(part.inputs for part in found)
        refused, crashes = sum(part.refused for part in found), sum(len(part.crashes) for part in found)
        slowest = max((part.slowest for part in found), default=0.0)
        megabytes = max((part.megabytes for part in found), default=0)
        lines.append(f"| {name} | {given[name]:,} | {refused:,} | {crashes} | {slowest:.2f} | {megabytes} |")
    return "\n".join(lines)


def with_figures(page: str) -> str:
    """Return the text of the page with the figures of the logs."""
    for name, text in figures().items():
        begin, end = f"<!-- {name} of the log -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(page), f"the page has no {begin}"
        page = pattern.sub(lambda _, new=f"{begin}\n\n{text}\n\n{end}": new, page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text()))
