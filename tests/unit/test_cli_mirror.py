"""`headrace mirror`: text, JSON, errors, and a worker that is ended by a signal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import main
from headrace.cli.mirror import _stopping
from headrace.model.tables.alterations import Alteration
from tests.python_messages import without_end_of_python


@pytest.fixture
def shop(tmp_path: Path) -> str:
    with headrace.open(tmp_path / "shop", create=True) as store:
        store.create_table("orders", {"id": "long", "name": "string"}, "id").put({"id": 1, "name": "a"})
    return str(tmp_path / "shop")


def test_a_table_is_copied_and_the_next_run_continues(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["mirror", "orders", "-s", shop, "--to", str(tmp_path / "copy"), "--available-now"]
    assert main(command) == 1
    assert "no store here" in capsys.readouterr().err
    assert main([*command, "--create"]) == 0
    assert capsys.readouterr().out == "Changes of orders copied into orders: 1.\n"
    with headrace.open(shop) as store:
        store.table("orders").put([{"id": 2}, {"id": 3}])
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"table": "orders", "copy": "orders", "changes": 2}
    assert main(["mirror", "orders", "-s", shop, "--available-now"]) == 1
    assert "puts rows into the table whose changes it reads" in capsys.readouterr().err
    assert main(["mirror", "orders", "past", "-s", shop, "--available-now", "--history"]) == 0
    with headrace.open(shop) as store:
        assert store.table("past").describe().rows == 3


def test_refused_rows_are_written_again_by_a_command(
    shop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = str(tmp_path / "copy")
    with headrace.open(copy, create=True) as store:
        fields = [pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)]
        store.create_table("orders", pa.schema(fields), "id")
    with headrace.open(shop) as store:
        store.table("orders").put({"id": 2})
    command = ["mirror", "orders", "-s", shop, "--to", copy, "--available-now"]
    assert main(command) == 1
    assert "NOT NULL" in capsys.readouterr().err
    assert main([*command, "--bad-rows", "table"]) == 0
    with headrace.open(copy) as store:
        assert store.table("orders").describe().rows == 1
        store.table("orders").alter(Alteration(relaxed=["name"]))
    capsys.readouterr()
    assert main(["table", "retry-rows", "orders", "-s", copy]) == 0
    assert capsys.readouterr().out == "Table orders: 1 rows written, 0 refused again, 0 outdated.\n"
    assert main(["table", "retry-rows", "orders", "-s", copy, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"table": "orders", "written": 0, "refused": 0, "outdated": 0}
    assert main(command) == 0


@pytest.mark.parametrize("option", [["--create"], ["--to-option", "synchronous=off"]])
def test_options_of_the_store_of_the_copy_need_it(
    shop: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mirror", "orders", "copy", "-s", shop, "--available-now", *option]) == 2
    assert "give --to" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_after_its_batch(shop: str, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "mirror", "orders", "copy", "-s", shop]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        with headrace.open(shop) as store:
            while "copy" not in store.tables() or store.table("copy").describe().rows != 1:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            worker.send_signal(number)
            printed, errors = worker.communicate(timeout=60)
            assert (worker.returncode, printed) == (0, "Changes of orders copied into copy: 1.\n")
            assert without_end_of_python(errors) == ""
            (described,) = [each.describe() for each in store.tunnels()]
        assert [each.client for each in described.channels] == [None] * len(described.channels)
        assert described.backlog_rows == 0
    finally:
        worker.kill()
        worker.wait()


def test_a_second_signal_has_its_former_handler() -> None:
    stopped, former = list[str](), signal.getsignal(signal.SIGTERM)
    second = list[int]()
    signal.signal(signal.SIGTERM, lambda number, frame: second.append(number))
    try:
        with _stopping(lambda: stopped.append("stop")):
            signal.raise_signal(signal.SIGTERM)
            assert (stopped, second) == (["stop"], [])
            signal.raise_signal(signal.SIGTERM)
        assert (stopped, second) == (["stop"], [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, former)
