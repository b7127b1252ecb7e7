"""docs/reliability.md has the figures of its logs, and its matrix the cells that make sense."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.matrix import log
from tests.chaos.matrix.cells import FAULTS, QUERIES, STORES, VICTIMS, Cell, makes_sense, plan
from tests.chaos.matrix.document import PAGE, matrix, seeds, totals, with_figures
from tests.chaos.matrix.log import Entry
from tests.chaos.matrix.run import number_of


def entry(**given: object) -> Entry:
    values = {"seed": 1, "victim": "driver", "query": "window", "store": "embedded", "kills": 2, "batches": 5}
    values |= {"replayed": 1, "tasks": 0, "rows": 1_000, "lost": 0, "doubled": 0, "out_of_order": 0, "seconds": 3.6}
    return Entry(**{**values, "versions": "headrace", **given})  # type: ignore[arg-type]


def test_the_page_has_the_figures_of_the_logs() -> None:
    page = PAGE.read_text()
    assert with_figures(page) == page, "python -m tests.chaos.matrix.document writes the figures"


def test_no_two_storms_of_the_log_have_a_seed() -> None:
    seeds = [storm.seed for storm in log.read()]
    assert len(seeds) == len(set(seeds))


def test_only_cells_that_make_sense_are_planned_and_each_has_a_kill() -> None:
    every = {Cell(*each) for each in _product()}
    for kills in (1, 300, 1_000):
        found = plan(kills)
        assert set(found) == {cell for cell in every if makes_sense(cell)}
        assert min(found.values()) >= 1
        assert sum(count for cell, count in found.items() if not cell.is_fault) >= kills
    assert not makes_sense(Cell("database", "window", "embedded"))
    assert not makes_sense(Cell("endpoint", "window", "postgres"))
    assert not makes_sense(Cell("writer", "several tables", "tablestore"))
    numbers = [number_of(cell) for cell in every]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) > max(storm.seed for storm in log.read() if storm.seed < 1_000_000) // 1000


def _product() -> list[tuple[str, str, str]]:
    return [(victim, query, store) for victim in (*VICTIMS, *FAULTS) for query in QUERIES for store in STORES]


def test_totals_and_matrix_count_storms_of_the_log() -> None:
    storms = [entry(), entry(seed=2, kills=3, lost=4), entry(seed=3, victim="clock jump")]
    assert "| kills | 2 | 1 | 5 | 10 | 2 | 0 | 2,000 | 4 | 0 | 0 | 0.0 |" in totals(storms)
    assert "| faults | 1 | 1 | 2 |" in totals(storms)
    # Only kills of storms that held.
    assert "| driver | embedded | 0 | 2 | 0 | 0 | 0 | 0 | 0 | 2 |" in matrix(storms)


def test_seeds_are_listed_by_cell_with_their_versions() -> None:
    storms = [entry(), entry(seed=7), entry(seed=3, victim="clock jump", store="tablestore", failed="a reason")]
    lines = seeds(storms).splitlines()
    assert lines[:3] == ["Storms:", "", "- 3 with headrace"]
    assert "| driver | embedded |  | 1, 7 |  |  |  |  |  |" in lines
    assert "| clock jump | tablestore |  | 3 |  |  |  | — |  |" in lines


def test_a_storm_survives_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    storms = [entry(), entry(seed=2, failed="a reason")]
    for each in storms:
        log.append(each, path)
    assert log.read(path) == storms
    assert [storm.held for storm in storms] == [True, False]
