"""Tablestore's official Go client, unchanged, reads a tunnel of the endpoint with several workers."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.interop.programs import LineProcess, built_with_go
from tests.tablestore.interop.conftest import Endpoint

ROWS = 300
PATIENCE = 120.0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return built_with_go("go_worker", tmp_path_factory.mktemp("go"))


class Worker(LineProcess):
    """A process that reads a tunnel."""

    def records(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "key" in line]


def test_workers_in_go_read_everything_while_the_table_splits_and_one_is_killed(
    program: list[str], endpoint: Endpoint, tmp_path: Path
) -> None:
    with headrace.open(str(endpoint.root / "golang"), create=True) as store, ExitStack() as stack:
        columns = {"id": "long", "n": "long", "text": "string", "x": "double", "b": "boolean", "raw": "binary"}
        table = store.create_table("T", columns, "id")
        others = {"text": "é", "x": 0.5, "b": True, "raw": b"\0\1"}
        table.put([{"id": number, "n": 0, **others} for number in range(ROWS)])
        tunnel = store.create_tunnel("T", "go")
        command = [*program, endpoint.url, "golang", "T", "go"]
        workers: list[Worker] = []
        for place in range(2):
            workers.append(Worker(command, tmp_path / str(place)))
            stack.enter_context(workers[-1].running())
        written: dict[int, list[int]] = defaultdict(list)

        def write(n: int) -> None:
            ids = range(n % 10, ROWS, 10)
            table.update([{"id": number, "n": n} for number in ids])
            for number in ids:
                written[number].append(n)

        def seen() -> set[tuple[int, int]]:
            """Return the updates that have arrived, as (id, n)."""
            records = [record for each in workers for record in each.records() if record["type"] == "UpdateRow"]
            return {(record["key"][0], record["cells"]["n"][1]) for record in records if "n" in record["cells"]}

        def deleted() -> list[list[int]]:
            return [record["key"] for each in workers for record in each.records() if record["type"] == "DeleteRow"]

        def wait(*, deletions: int) -> None:
            wanted = {(number, n) for number, numbers in written.items() for n in numbers}
            ends = time.monotonic() + PATIENCE
            while seen() != wanted or len(deleted()) < deletions:
                assert time.monotonic() < ends
                assert any(each.process.poll() is None for each in workers), [each.lines()[-1:] for each in workers]
                time.sleep(0.2)

        for n in range(1, 11):
            write(n)
        left, right = table.split()
        write(11)
        wait(deletions=0)
        workers[0].process.kill()
        write(12)
        table.merge(left, right)
        write(13)
        table.update([{"id": 1, "text": None}])
        table.delete([{"id": 2}])
        # The merged channel has one order, in which this is the last change.
        wait(deletions=1)
        workers[1].process.terminate()
        assert workers[1].process.wait(60) == 0
        stages = {described.channel.state.value for described in tunnel.describe().channels}
    assert stages == {"finished", "open"}
    told = workers[0].lines()[0]
    assert (told["tunnel"]["TunnelName"], told["listed"]) == ("go", 1)
    assert {channel["ChannelType"] for channel in told["channels"]} == {"BaseData", "Stream"}
    assert set(told["rpo"]["TunnelRpoInfos"]) == {"BaseData", "Stream"}
    records = [record for each in workers for record in each.records()]
    base = {record["key"][0]: record["cells"] for record in records if record["channel"].startswith("BaseData_")}
    assert sorted(base) == list(range(ROWS))
    assert base[7] == {"n": [0, 0], "text": [0, "é"], "x": [0, 0.5], "b": [0, True], "raw": [0, "AAE="]}
    stream: dict[int, set[tuple[int, int, int]]] = defaultdict(set)
    for record in records:
        if record["type"] == "UpdateRow" and "n" in record["cells"]:
            sequence = record["sequence"]
            stream[record["key"][0]].add((sequence["Timestamp"], sequence["RowIndex"], record["cells"]["n"][1]))
    assert {number: [n for *_, n in sorted(changes)] for number, changes in stream.items()} == dict(written)
    assert deleted() == [[2]]
    assert [record["cells"] for record in records if "text" in record["cells"] and record["type"] == "UpdateRow"] == [
        {"text": [2, None]}
    ]
