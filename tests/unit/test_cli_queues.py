"""``headrace queue`` and ``headrace consumer``: their effects on a store, and their output."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.cli.main import main
from headrace.ports import Queue, Store

Run = Callable[..., Any]


@pytest.fixture
def clicks(run: Run, store: str) -> Queue:
    """A queue with two partitions; two rows are in the first."""
    run("queue", "create", "clicks", "-c", "user=string not null", "-c", "tags=array<string>", "-p", "2")
    queue = headrace.open(store, synchronous="off").queue("clicks")
    queue.append([{"user": "u1", "tags": ["a"]}, {"user": "u2"}], partition=0)
    return queue


def test_queues_are_created_listed_shown_and_dropped(run: Run, clicks: Queue) -> None:
    (listed,) = run("queue", "list")
    assert (listed["name"], listed["columns"], listed["partitions"], listed["rows"]) == (
        "clicks", ["user", "tags"], 2, 2,
    )  # fmt: skip
    shown = run("queue", "describe", "clicks")
    assert shown["columns"] == [
        {"column": "user", "type": "string", "nullable": False},
        {"column": "tags", "type": "array<string>", "nullable": True},
    ]
    assert [(part["lower"], part["upper"], part["rows"]) for part in shown["partitions"]] == [(0, 2, 2), (0, 0, 0)]
    assert (shown["auto_trim"], shown["retained_rows"], shown["consumers"]) == (False, None, [])
    taken = run("queue", "create", "clicks", "-c", "user=string", code=1)["error"]
    assert taken["type"] == "AlreadyExistsError"
    assert "--if-not-exists" in taken["remedy"]
    again = ("queue", "create", "clicks", "-c", "user=string not null", "-c", "tags=array<string>", "--if-not-exists")
    assert run(*again) == {"queue": "clicks", "created": False}
    assert run("queue", "drop", "clicks") == {"queue": "clicks", "dropped": True}
    assert run(*again) == {"queue": "clicks", "created": True}
    assert run("queue", "drop", "clicks")["dropped"]
    assert run("queue", "list") == []
    assert run("queue", "drop", "clicks", code=1)["error"]["type"] == "NotFoundError"
    assert run("queue", "drop", "clicks", "--if-exists") == {"queue": "clicks", "dropped": False}


def test_the_old_name_of_describe_works_with_a_warning(
    clicks: Queue, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "show", "clicks", "-s", store, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["name"] == "clicks"
    assert "use `headrace queue describe`" in json.loads(printed.err)["warning"]
    assert main(["queue", "show", "clicks", "-s", store]) == 0
    assert capsys.readouterr().err.startswith("warning: ")


def test_create_accepts_the_options_of_a_queue(run: Run) -> None:
    run("queue", "create", "q", "-c", "a=int", "--auto-trim", "--retained-rows", "10", "--retained-seconds", "60")
    shown = run("queue", "describe", "q")
    assert (shown["auto_trim"], shown["retained_rows"], shown["retained_seconds"]) == (True, 10, 60.0)


def test_rows_are_appended_and_read_with_their_addresses(
    run: Run, clicks: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "more.csv").write_text("user\nu3\nu4\n")
    appended = run("queue", "append", "clicks", str(tmp_path / "more.csv"), "--partition", "1")
    assert appended == {"queue": "clicks", "rows": 2, "ends": {"1": 2}}
    line = b'{"user": "u5", "tags": ["x", "y"]}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line)))
    run("queue", "append", "clicks", "-p", "1")
    assert run("queue", "read", "clicks", "-p", "1", "--from", "1") == [
        {"$tablet_index": 1, "$row_index": 1, "user": "u4", "tags": None},
        {"$tablet_index": 1, "$row_index": 2, "user": "u5", "tags": ["x", "y"]},
    ]
    assert [row["user"] for row in run("queue", "read", "clicks")] == ["u1", "u2", "u3", "u4", "u5"]
    assert [row["user"] for row in run("queue", "read", "clicks", "--limit", "3")] == ["u1", "u2", "u3"]
    assert "--partition" in run("queue", "read", "clicks", "--from", "1", code=1)["error"]["remedy"]
    assert run("queue", "read", "clicks", "-p", "7", code=1)["error"]["received"] == "7"


def test_rows_of_one_key_go_to_one_partition(run: Run, clicks: Queue, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"user": f"k{n % 5}"}) + "\n" for n in range(50)))
    run("queue", "append", "clicks", str(file), "--key", "user")
    found: dict[str, set[int]] = {}
    for row in run("queue", "read", "clicks"):
        found.setdefault(row["user"], set()).add(row["$tablet_index"])
    assert all(len(found[f"k{n}"]) == 1 for n in range(5))


def test_a_file_with_an_invalid_row_changes_nothing(run: Run, clicks: Queue, tmp_path: Path) -> None:
    (tmp_path / "wrong.jsonl").write_text('{"user": "u3"}\n{"user": "u4", "tags": "x"}\n')
    assert "line 2" in run("queue", "append", "clicks", str(tmp_path / "wrong.jsonl"), code=1)["error"]["message"]
    assert clicks.bounds()[0].upper == 2


def test_queues_are_trimmed_and_partitions_are_added(run: Run, clicks: Queue) -> None:
    assert run("queue", "trim", "clicks", "--before", "0=1") == {"queue": "clicks", "rows": 1}
    assert [row["user"] for row in [run("queue", "read", "clicks")]] == ["u2"]
    assert run("queue", "read", "clicks", "-p", "0", "--from", "0", code=1)["error"]["type"] == "DataLossError"
    assert run("queue", "trim", "clicks")["rows"] == 0
    assert run("queue", "add-partitions", "clicks", "2") == {"queue": "clicks", "partitions": 4}


def test_consumers_are_registered_and_advanced(run: Run, clicks: Queue) -> None:
    assert run("consumer", "create", "//c")["created"]
    assert run("consumer", "create", "//c", "--if-not-exists") == {"consumer": "//c", "created": False}
    assert run("consumer", "list") == [
        {"name": "//c", "queue": None, "vital": None, "unread_rows": None, "lag_seconds": None}
    ]
    assert run("consumer", "register", "//c", "clicks", "--vital")["vital"] is True
    (listed,) = run("consumer", "list", "--queue", "clicks")
    assert (listed["name"], listed["queue"], listed["vital"], listed["unread_rows"]) == ("//c", "clicks", True, 2)
    run("consumer", "advance", "//c", "clicks", "0=1", "--expect", "0=0")
    conflict = run("consumer", "advance", "//c", "clicks", "0=2", "1=0", "--expect", "0=0", code=1)
    assert conflict["error"]["type"] == "OffsetConflictError"
    assert conflict["error"]["problem"] == "consumer '//c' is at row 1 in partition 0 of queue 'clicks'"
    assert conflict["error"]["received"] == "expected row 0"
    status = run("consumer", "describe", "//c")
    assert (status["consumer"], status["unread_rows"]) == ("//c", 1)
    first, second = status["partitions"]
    assert (first["offset"], first["disposition"], first["unread_rows"]) == (1, "pending_consumption", 1)
    assert (second["disposition"], second["lag_seconds"]) == ("up_to_date", 0.0)
    assert run("consumer", "describe", "//c", "--queue", "clicks")["partitions"][0]["offset"] == 1
    assert run("queue", "drop", "clicks", code=1)["error"]["received"] == "consumer //c"
    assert run("consumer", "drop", "//c", code=1)["error"]["received"] == "queue clicks"
    assert run("consumer", "unregister", "//c", "clicks")["was_registered"] is True
    assert run("consumer", "unregister", "//c", "clicks")["was_registered"] is False
    assert run("consumer", "list", "--queue", "clicks") == []
    run("consumer", "drop", "//c")
    assert run("consumer", "describe", "//c", code=1)["error"]["type"] == "NotFoundError"
    assert run("consumer", "drop", "//c", "--if-exists") == {"consumer": "//c", "dropped": False}


def test_status_of_a_consumer_without_registration_prints_a_hint(
    run: Run, clicks: Queue, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("consumer", "create", "//c")
    for arguments, hint in (
        ([], "not registered for any queue. To read it: headrace consumer register //c QUEUE\n"),
        (["--queue", "clicks"], "for queue clicks. To read it: headrace consumer register //c clicks\n"),
    ):
        assert main(["consumer", "describe", "//c", *arguments, "-s", store]) == 0
        assert hint in capsys.readouterr().err
    run("consumer", "register", "//c", "clicks")
    assert main(["consumer", "describe", "//c", "-s", store]) == 0
    assert capsys.readouterr().err == ""


def test_text_output_shows_tables(run: Run, clicks: Queue, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("consumer", "create", "//c")
    run("consumer", "register", "//c", "clicks")
    for arguments in (
        ["queue", "list"],
        ["queue", "describe", "clicks"],
        ["consumer", "list"],
        ["consumer", "describe", "//c"],
    ):
        assert main([*arguments, "-s", store]) == 0
        assert "clicks" in capsys.readouterr().out
    assert main(["queue", "read", "clicks", "-s", store]) == 0
    assert "u1" in capsys.readouterr().out


def test_a_queue_is_followed_until_the_limit(run: Run, clicks: Queue, store: str) -> None:
    command = [sys.executable, "-m", "headrace.cli.main", "queue", "read", "clicks", "--follow", "--json", "-s", store]
    with subprocess.Popen([*command, "-n", "4"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [json.loads(process.stdout.readline())["user"] for _ in range(2)] == ["u1", "u2"]
            clicks.append([{"user": "u3"}], partition=1)
            assert json.loads(process.stdout.readline())["user"] == "u3"
            clicks.append([{"user": "u4"}, {"user": "u5"}], partition=0)
            last = json.loads(process.stdout.readline())
            assert (last["$tablet_index"], last["$row_index"], last["user"]) == (0, 2, "u4")
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


def test_trimmed_rows_before_the_next_one_end_a_followed_queue(
    clicks: Queue, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trim(waiting: Store, timeout: float | None = None) -> bool:
        clicks.append([{"user": "u3"}, {"user": "u4"}], partition=0)
        clicks.trim(0, 3)
        return True

    monkeypatch.setattr("headrace.stores.embedded.store.EmbeddedStore.wait_for_change", trim)
    assert main(["queue", "read", "clicks", "--follow", "-s", store]) == 1
    assert "trimmed" in capsys.readouterr().err


def test_watch_prints_a_line_for_each_refresh_until_it_is_interrupted(run: Run, clicks: Queue, store: str) -> None:
    run("consumer", "create", "//c")
    run("consumer", "register", "//c", "clicks")
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "consumer",
        "describe",
        "//c",
        "--watch",
        "--json",
        "-s",
        store,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["unread_rows"] == 2
            run("consumer", "advance", "//c", "clicks", "0=2")
            assert any(json.loads(line)["unread_rows"] == 0 for line in iter(process.stdout.readline, ""))
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
            assert process.stderr is not None
            assert process.stderr.read().strip() == ""
        finally:
            process.kill()
