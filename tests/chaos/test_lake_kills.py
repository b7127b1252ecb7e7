"""Mirrors, MERGE and followed joins into lake tables, beside another program: all are killed at random moments."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.model.findings import Status
from headrace.ports import Store
from headrace.testing.effort import THOROUGH, thorough
from headrace.testing.processes import CONTEXT
from headrace_lake.maintenance import LakeStore
from tests.chaos import lake_actors, lake_batches
from tests.chaos.storm import KILLS, SEED, Actor, random_victims, storm, wait_for, wait_for_start
from tests.lake import buckets, ducklakes
from tests.lake.jobs import STATE, TARGETS

BUCKET = "delta in a bucket"
KINDS = [
    "delta",
    pytest.param("ducklake", marks=ducklakes.needs_referee),
    "iceberg",
    "iceberg in postgres",
    pytest.param(BUCKET, marks=pytest.mark.skipif(buckets.PROGRAM is None, reason="moto's server is not installed")),
]


@pytest.fixture
def served(tmp_path: Path, kind: str) -> Iterator[None]:
    """Starts the server of a lake in a bucket."""
    if kind != BUCKET:
        yield
        return
    with buckets.bucket(tmp_path) as place:
        (tmp_path / "endpoint").write_text(place.endpoint)
        yield


def check(directory: Path, source: Store, lake: LakeStore, names: list[str], context: str) -> None:
    """Compare lake tables with the source, their files, and the rows of another reader."""
    orders = list(source.table("orders"))
    for name in names:
        table = lake.table(name)
        found = list(table)
        shown = f"{name}, {context}"
        if name == "totals":
            assert found == lake_actors.totals(orders, source.table("parts")), shown
        elif name == "versions":
            assert [{key: row.get(key) for key in orders[0]} for row in found if row["is_current"]] == orders, shown
        else:
            columns = table.schema.names if name == "merged" else source.table("orders").schema.names
            expected = [{key: row[key] for key in columns} for row in orders]
            assert [{key: row.get(key) for key in columns} for row in found if row["id"] >= 0] == expected, shown
        if name == "copy":
            _check_others(directory, {row["id"] for row in found if row["id"] < 0}, context)
        _check_files(directory, lake, name, shown)


def _check_files(directory: Path, lake: LakeStore, name: str, context: str) -> None:
    """Compare the files of a table with its metadata, and its rows with those of another reader."""
    findings = lake.maintenance(name).check()
    assert not [each for each in findings if each.status is Status.FAIL], (context, findings)
    rows = lake_actors.read(directory / "lake", lake.url, name, lake.table(name).schema.names)
    assert sorted(map(_text, rows)) == sorted(map(_text, lake.table(name))), context


def _text(row: dict[str, object]) -> str:
    # DuckDB's rows come as JSON.
    return json.dumps(row, default=str, sort_keys=True)


def _check_others(directory: Path, found: set[int], context: str) -> None:
    """Check the rows of the other program: all that it has certainly written, and no other ones."""
    keys: dict[str, set[int]] = {}
    for line in (directory / "others").read_text().splitlines():
        try:
            what, each = json.loads(line)
        except ValueError:
            continue
        keys.setdefault(what, set()).update(each)
    tried, done, deleting, deleted = (
        keys.get(name, set()) for name in ("appending", "appended", "deleting", "deleted")
    )
    assert done - deleting <= found <= tried - deleted, context


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("several", [False, True] if THOROUGH else [True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_files_and_marker_of_a_lake_agree_after_each_kill(tmp_path: Path, kind: str, several: bool) -> None:
    source, lake = lake_actors.create(tmp_path, kind)
    source.close()
    lake.create_table(STATE, {"id": "long", "batches": "long"}, "id")
    lake.create_table(TARGETS, {"target": "string", "job": "string"}, "target")
    names = lake_batches.TABLES if several else lake_batches.TABLES[:1]
    chance = random.Random(SEED)
    last = KILLS * thorough(10)
    for number in range(1, last + 1):
        running = CONTEXT.Event()
        victim = CONTEXT.Process(target=lake_batches.run, args=(tmp_path, names, chance.random() < 0.5, running))
        victim.start()
        assert running.wait(60)
        if chance.random() < 0.5:
            lake_actors.rewrite(tmp_path, lake, chance)
        time.sleep(chance.uniform(0, 0.3))
        assert victim.exitcode is None, f"seed {SEED}, kill {number}"
        victim.kill()
        victim.join()
        # DuckDB starts in a second.
        other = kind != "ducklake" or number % 5 == 0 or number == last
        _check_batch(tmp_path, lake, names, f"seed {SEED}, kill {number}", other=other)
    lake.close()


def _check_batch(directory: Path, lake: LakeStore, names: tuple[str, ...], context: str, *, other: bool) -> None:
    """Compare tables and state with the batch that the marker names, as the next driver finds them.

    Args:
        other: whether the files and the rows of another reader are compared, too.
    """
    publisher = lake.publisher("job", "sink")
    last = publisher.last_batch()
    if last is not None:
        assert publisher.resume(last)
        assert publisher.last_batch() == last, context
    expected = lake_batches.rows_after(last)
    for name in names:
        table = lake.table(name)
        rows = [dict.fromkeys(table.schema.names) | expected[key] for key in sorted(expected)]
        assert list(table) == rows, (context, name, last)
        if other:
            _check_files(directory, lake, name, f"{name}, {context}")
    if len(names) > 1 and last is not None:
        assert list(lake.table(STATE)) == [{"id": 1, "batches": last + 1}], context


@pytest.mark.storm
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kind", [pytest.param("ducklake", marks=ducklakes.needs_referee, id="ducklake in postgres"), "iceberg in postgres"]
)
def test_rows_and_marker_of_a_join_beside_a_database_agree_after_each_kill(
    tmp_path: Path, actors_of: list[Actor], kind: str
) -> None:
    source, lake = lake_actors.create(tmp_path, kind)
    orders, parts = source.table("orders"), source.table("parts")
    database = lake.url.partition("+")[2]

    def batches() -> int:
        if ducklakes.catalog(database, "SELECT to_regclass('headrace.marker')") == [(None,)]:
            return 0
        ((number,),) = ducklakes.catalog(database, "SELECT coalesce(sum(batch + 1), 0) FROM headrace.marker")
        return int(number)

    def has_more(number: int) -> bool:
        return batches() > number

    driver = Actor("lake_actors", tmp_path, "driver", "totals")
    actors_of.append(driver)
    chance = random.Random(SEED)
    # A batch reads each table up to one of its versions.
    versions: tuple[list[Any], list[Any]] = [list(orders)], [list(parts)]
    before: list[Any] = []
    number = 0
    for kill in range(KILLS):
        context = f"seed {SEED}, kill {kill}"
        wait_for_start(tmp_path, driver)
        if chance.random() < 0.7:
            wait_for(partial(has_more, number), 120)
        for _ in range(chance.randrange(1, 6)):
            lake_actors.change(source, chance)
            for table, each in zip((orders, parts), versions, strict=True):
                each.append(list(table))
            time.sleep(chance.uniform(0, 0.5))
        time.sleep(chance.uniform(0, 1.5))
        driver.kill()
        found, reached = list(lake.table("totals")), batches()
        assert reached > number or found == before, context
        assert not reached or any(lake_actors.totals(*each) == found for each in itertools.product(*versions)), context
        _check_files(tmp_path, lake, "totals", context)
        before, number = found, reached
        (tmp_path / "running").unlink(missing_ok=True)
        driver.start()
    (tmp_path / "written").touch()
    wait_for((tmp_path / "done").exists, 120)
    check(tmp_path, source, lake, ["totals"], f"seed {SEED}")
    lake.close()
    source.close()


@pytest.mark.storm
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["copy", "versions"], ["merged", "totals"]], ids=["mirrors", "queries"])
def test_lake_tables_have_their_results_after_kills_beside_another_program(
    tmp_path: Path, actors_of: list[Actor], kind: str, names: list[str]
) -> None:
    source, lake = lake_actors.create(tmp_path, kind)
    driver = Actor("lake_actors", tmp_path, "driver", *names)
    actors_of.append(driver)
    # The targets of new mirrors must be empty.
    wait_for_start(tmp_path, driver)
    columns = "3" if "copy" in names else "0"
    writers = [
        Actor("lake_actors", tmp_path, "writer", str(SEED), columns),
        Actor("lake_actors", tmp_path, "other", str(SEED)),
    ]
    actors_of += writers
    chance = random.Random(SEED)
    killed = storm(tmp_path, driver, writers, chance, random_victims(chance))
    context = f"seed {SEED}, kills {dict(killed)}"
    check(tmp_path, source, lake, names, context)
    lake.close()
    source.close()
