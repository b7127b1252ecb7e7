"""Random steps of other programs between the steps of random batches: a batch is as if it came after them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Write
from headrace.testing.effort import thorough
from headrace_lake.iceberg import commits
from headrace_lake.iceberg.commits import Planner
from headrace_lake.iceberg.maintenance import IcebergMaintenance
from headrace_lake.iceberg.schemas import MANIFESTS, SNAPSHOTS
from headrace_lake.iceberg.store import IcebergStore
from headrace_lake.iceberg.version import Version
from tests.lake.icebergs import append, foreign, opened, rows_of
from tests.lake.jobs import write

DAY = 86400.0
KEYS = some.lists(some.integers(0, 7), min_size=1, max_size=3, unique=True)
MOMENTS = some.sampled_from(["checked", "planned", "written"])
STEPS = some.sampled_from(["append", "delete", "overwrite", "expire", "compact", "vacuum"])
BATCHES = some.lists(
    some.tuples(
        some.sampled_from([RowChange.PUT, RowChange.DELETE, RowChange.REPLACE_ALL, None]),
        KEYS,
        some.dictionaries(MOMENTS, STEPS),
    ),
    min_size=1,
    max_size=4,
)


class World:
    """A table, what it must have, and the steps that wait for a moment of a commit."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: dict[int, str] = {}
        self.waiting: dict[str, str] = {}
        self._added = 100

    def reach(self, moment: str) -> None:
        """Run the step that waits for a moment."""
        step = self.waiting.pop(moment, None)
        if step is not None:
            getattr(self, f"_{step}")()

    def age(self) -> None:
        """Let all files be old enough for a vacuum."""
        moment = time.time() - 9 * DAY
        for path in self.directory.rglob("*.*"):
            if path.suffix in (".parquet", ".avro", ".json"):
                os.utime(path, (moment, moment))

    def maintained(self) -> IcebergMaintenance:
        store = opened(self.directory)
        assert isinstance(store, IcebergStore)
        return store.maintenance("t")

    def _append(self) -> None:
        self._added += 1
        append(self.directory, [{"id": self._added, "name": "theirs"}])
        self.rows[self._added] = "theirs"

    def _delete(self) -> None:
        number = min(self.rows, default=0)
        foreign(self.directory).delete(f"id = {number}")
        self.rows.pop(number, None)

    def _overwrite(self) -> None:
        table = foreign(self.directory)
        rows = table.scan().to_arrow()
        table.overwrite(rows.cast(table.schema().as_arrow()))

    def _expire(self) -> None:
        table = foreign(self.directory)
        current = table.current_snapshot()
        old = [each.snapshot_id for each in table.snapshots() if each != current]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def _compact(self) -> None:
        self.maintained().compact()

    def _vacuum(self) -> None:
        self.maintained().vacuum()


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The last of these worlds is told of the moments of each commit to its table."""
    found: list[World] = []

    def before(owner: Any, name: str, moment: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            found[-1].reach(moment)
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    before(Version, "check_writable", "checked")
    before(Planner, "plan", "planned")
    before(commits, "committed", "written")
    return found


@settings(
    max_examples=thorough(30), deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@given(batches=BATCHES, limits=some.sampled_from([("10", "20"), ("2", "1")]))
@pytest.mark.filterwarnings("ignore:Delete operation did not match:UserWarning")
def test_batches_beside_other_programs(
    worlds: list[World], batches: list[tuple[RowChange | None, list[int], dict[str, str]]], limits: tuple[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        world = World(Path(name))
        worlds.append(world)
        store = opened(world.directory)
        properties = dict(zip((MANIFESTS, SNAPSHOTS), limits, strict=True))
        foreign(world.directory).transaction().set_properties(properties).commit_transaction()
        publisher = store.publisher("job", "sink")
        for batch, (change, numbers, steps) in enumerate(batches):
            new = {} if change is None else dict.fromkeys(numbers, f"batch {batch}")
            columns = [{"id": each} if change is RowChange.DELETE else {"id": each, "name": new[each]} for each in new]
            writes = [] if change is None else [write(store, publisher, batch, "t", columns, change)]
            world.age()
            world.waiting = dict(steps)
            assert publisher.publish(batch, writes or [Write("t", RowChange.PUT, ())])
            world.waiting = {}
            if change is RowChange.REPLACE_ALL:
                world.rows.clear()
            for each, text in new.items():
                if change is RowChange.DELETE:
                    world.rows.pop(each, None)
                else:
                    world.rows[each] = text
            assert not publisher.publish(batch, writes or [Write("t", RowChange.PUT, ())])
            assert {row["id"]: row["name"] for row in rows_of(world.directory)} == world.rows
        assert [each.status for each in world.maintained().check()] != [Status.FAIL]
        store.close()
