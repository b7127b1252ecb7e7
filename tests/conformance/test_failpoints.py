"""A pipeline that is killed at any step of a batch continues, and its sink has every row once.

The steps are the named points of `headrace.support.failpoints`; docs/guarantees.md, "Each failure", describes the
outcomes.
"""

from __future__ import annotations

import ast
import signal
from pathlib import Path

import pytest

import headrace
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.support.failpoints import POINTS, VARIABLE, arm
from headrace.testing import Place
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from headrace.testing.reading import run_to_the_end
from tests.conformance import pipelines
from tests.conformance.pipelines import (
    Checkpoint,
    FollowedQueuePipeline,
    Pipeline,
    QueuePipeline,
    ReplacingQueuePipeline,
    ReplacingTablePipeline,
    SeveralTablesPipeline,
    TablePipeline,
)

DEADLINE = 120.0
# `spark/test_replaced_texts.py` kills there.
OF_NEW_TEXTS = {"text-fenced", "table-read", "text-staged", "text-published"}
PUBLICATION = ("rows-staged", "rows-written", "marker-written", "published")
PROGRESS = ("progress-unsaved", "progress-saved")
# A batch has several transactions and requests of the store; the test kills at these of them.
WRITES = tuple(
    f"{point}:{times}" for point in ("uncommitted", "committed") for times in (range(1, 7) if THOROUGH else (1, 4))
)
QUEUE_WRITES = WRITES if THOROUGH else ("uncommitted:4", "committed:4")
# The second time, so that one batch comes before and another one after.
CASES: list[tuple[type[Pipeline], tuple[str, ...], tuple[str, ...]]] = [
    (
        TablePipeline,
        ("plan-unsaved", "plan-saved", "rows-read", "end-recorded", *PUBLICATION, *PROGRESS, *WRITES),
        ("tunnels",),
    ),
    (
        SeveralTablesPipeline,
        ("plan-saved", "rows-read", "end-recorded", "published", *PROGRESS)
        if THOROUGH
        else ("end-recorded", "progress-saved"),
        ("several_tables", "transactions"),
    ),
    (ReplacingTablePipeline, PUBLICATION, ("tunnels",)),
    (QueuePipeline, ("rows-read", *PUBLICATION, *QUEUE_WRITES), ("queues", "transactions")),
    (FollowedQueuePipeline, PROGRESS, ("queues", "transactions")),
    (ReplacingQueuePipeline, ("published",), ("queues", "transactions")),
    # A store with a limit of rows in a publication replaces a queue in parts.
    (ReplacingQueuePipeline, ("intent-written", "parts-written"), ("queues", "transactions", "rows_at_once")),
]
# Each row of their sink is written once.
COPIES = (TablePipeline, SeveralTablesPipeline)
PARAMETERS = [
    pytest.param(kind, point if ":" in point else f"{point}:2", marks=pytest.mark.needs(*needs))
    for kind, points, needs in CASES
    for point in points
]


@pytest.mark.parametrize(("kind", "point"), PARAMETERS)
def test_a_kill_at_any_step_neither_loses_nor_duplicates_rows(
    place: Place, store: Store, tmp_path: Path, kind: type[Pipeline], point: str
) -> None:
    kind.create(store)
    if kind in COPIES and store.capabilities.transactions:
        # From the beginning: not every store can read a log from before the creation of a tunnel.
        store.create_tunnel(kind.sink, "log", "Stream")
    process = CONTEXT.Process(target=pipelines.run, args=(kind, place, tmp_path / "checkpoint", point))
    process.start()
    process.join(DEADLINE)
    try:
        assert process.exitcode == -signal.SIGKILL, "the pipeline was not killed there"
    finally:
        process.kill()
        process.join()
    pipeline = kind(store, Checkpoint(tmp_path / "checkpoint"))
    pipeline.write_more()
    pipeline.run()
    pipeline.check()
    if kind in COPIES and store.capabilities.transactions:
        assert_no_row_was_written_twice(store)


def assert_no_row_was_written_twice(store: Store) -> None:
    """Check the log of the sink. It would show a row that was published twice as a replacement."""
    changes = [change for _, batch in run_to_the_end(TunnelFeed(store.tunnel("log"))) for change in batch]
    assert [change.op for change in changes] == [ChangeOp.INSERT] * ((pipelines.ROUNDS + 1) * pipelines.ROWS)


def test_the_listed_failpoints_are_those_in_the_code() -> None:
    found = set()
    for path in Path(headrace.__file__).parents[1].glob("headrace*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "failpoints.reach":
                found.add(ast.literal_eval(node.args[0]))
    assert found == set(POINTS)
    tried = {point.partition(":")[0] for _, points, _ in CASES for point in points}
    assert tried == set(POINTS) - OF_NEW_TEXTS


def test_an_unknown_failpoint_is_refused() -> None:
    with pytest.raises(ValueError, match=rf"{VARIABLE} is 'plan-lost'; valid: uncommitted, committed"):
        arm("plan-lost")
