"""Commands that do not need Spark: options, results as text and as JSON, exit codes of errors."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli.main import headrace, main
from headrace.stores.registry import open as open_store
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace

Run = Callable[..., Any]


@pytest.fixture
def orders(run: Run, tmp_path: Path) -> str:
    """A table with three rows."""
    run("table", "create", "orders", "-c", "UserId=string", "-c", "OrderId=long", "-c", "price=double",
        "-k", "UserId", "-k", "OrderId")  # fmt: skip
    file = tmp_path / "orders.csv"
    file.write_text("UserId,OrderId,price\nu1,1,1.5\nu1,2,\nu2,1,9\n")
    assert run("table", "put", "orders", str(file)) == {"table": "orders", "rows": 3, "replaced": 0}
    return "orders"


def all_commands(group: click.Command = headrace, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(group, click.Group):
        return [path]
    shown = [(name, command) for name, command in group.commands.items() if not command.hidden]
    return [found for name, command in shown for found in all_commands(command, (*path, name))]


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_every_command_has_a_description_an_example_and_json(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert re.search(r"\n\n  \w", text), "the command has no description"
    assert "Example:" in text, "the help has no example"


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_the_examples_of_every_command_are_valid(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some commands open their files while the command line is parsed.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sql").touch()
    context: click.Context | None = None
    command: click.Command = headrace
    for name in path:
        assert isinstance(command, click.Group)
        context = click.Context(command, context, name)
        command = command.commands[name]
    assert command.help is not None
    lines = command.help.replace("\b", "").partition("Example:")[2].split("\n\n")[0].splitlines()
    examples = [line.strip() for line in lines if "headrace " in line]
    assert examples
    for example in examples:
        words = shlex.split(example.partition("#")[0].partition("|")[0])
        arguments = words[words.index("headrace") + 1 :] if "headrace" in words else []
        if not arguments:
            continue
        found: click.Command = headrace
        parent: click.Context | None = None
        while isinstance(found, click.Group):
            name, found = arguments[0], found.commands[arguments[0]]
            parent, arguments = click.Context(found, parent, name), arguments[1:]
        found.make_context(found.name, arguments, parent).close()


def test_the_program_without_arguments_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out


def test_the_program_starts_without_its_heavy_libraries() -> None:
    code = (
        "import sys; from headrace.cli.main import main; main(['--help'])\n"
        "heavy = {'pyspark', 'pyarrow', 'pandas', 'numpy', 'rich', 'apsw'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("command", ["table list", "table describe orders", "table head orders", "tunnel list"])
def test_the_program_uses_a_store_without_pandas(store: str, orders: str, command: str) -> None:
    code = "import sys; from headrace.cli.main import main; assert main() == 0 and 'pandas' not in sys.modules"
    arguments = [sys.executable, "-c", code, *command.split(), "--store", store]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)


def test_tables_are_created_listed_described_and_dropped(run: Run, orders: str) -> None:
    assert run("table", "list") == [
        {
            "name": "orders",
            "columns": ["UserId", "OrderId", "price"],
            "primary_key": ["UserId", "OrderId"],
            "rows": 3,
            "partitions": 1,
        }
    ]
    described = run("table", "describe", "orders")
    assert described["rows"] == 3
    assert described["columns"][1] == {"column": "OrderId", "type": "long"}
    assert len(described["partitions"]) == 1
    assert run("table", "drop", "orders") == {"table": "orders", "dropped": True}
    assert run("table", "list") == []
    assert run("table", "drop", "orders", "--if-exists") == {"table": "orders", "dropped": False}


def test_what_exists_is_not_said_to_be_created(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    create = ["table", "create", "t", "-c", "id=long", "-k", "id", "--if-not-exists", "-s", store]
    drop = ["table", "drop", "t", "--if-exists", "-s", store]
    printed = []
    for command in (create, create, drop, drop):
        assert main(command) == 0
        printed.append(capsys.readouterr().out.strip())
    assert printed == ["Created table t.", "Table t exists.", "Dropped table t.", "There is no table t."]


def test_a_table_with_tunnels_is_dropped_only_by_force(run: Run, store: str, orders: str) -> None:
    with open_store(store) as opened:
        tunnel = opened.create_tunnel("orders", "stats")
        client = tunnel.connect(tag="worker 7")
        client.heartbeat([])
        refused = run("table", "drop", "orders", code=1)["error"]
        assert (refused["type"], refused["received"]) == ("InUseError", "tunnel stats (client worker 7)")
        assert "--force" in refused["remedy"]
        assert run("tunnel", "drop", "stats", code=1)["error"]["received"] == "client worker 7"
        client.close()
    assert run("table", "drop", "orders", "--force") == {"table": "orders", "dropped": True}
    assert run("tunnel", "list") == []


def test_what_a_running_stream_of_the_workspace_uses_is_dropped_only_by_force(
    run: Run, store: str, orders: str, tmp_path: Path
) -> None:
    with open_store(store) as opened:
        opened.create_tunnel("orders", "stats")
        opened.create_queue("totals", {"n": "long"})
    workspace = Workspace(tmp_path / "jobs")
    for name, object_ in (("source", "table"), ("sink", "queue")):
        options = {"store": store, object_: "orders" if object_ == "table" else "totals"}
        Catalog(workspace).add_table(TableDefinition(name, "headrace", options))
    registry = StreamRegistry(workspace)
    scan = "CREATE SCAN s ON source USING STREAM OPTIONS (tunnel = 'stats')"
    script = f"{scan}; CREATE STREAM job INSERT INTO sink SELECT * FROM s"
    registry.record_start("job", script=script, fingerprint="f", target="sink", checkpoint="cp")
    registry.set_running("job", "query")
    drops = (("table", "orders"), ("queue", "totals"), ("tunnel", "stats"))
    for kind, name in drops:
        refused = run(kind, "drop", name, "--workspace", str(tmp_path / "jobs"), code=1)["error"]
        assert refused["problem"] == f"{kind} {name} is in use"
        assert "stream job" in refused["received"]
    registry.set_ended("job", "stopped")
    for kind, name in reversed(drops):
        assert run(kind, "drop", name, "--workspace", str(tmp_path / "jobs")) == {kind: name, "dropped": True}
    workspace.close()


def test_rows_are_scanned_with_conditions_columns_and_a_limit(run: Run, orders: str) -> None:
    assert run("table", "head", "orders", "-n", "1") == {"UserId": "u1", "OrderId": 1, "price": 1.5}
    assert run("table", "scan", "orders", "-w", "UserId = u1", "-c", "OrderId,price") == [
        {"OrderId": 1, "price": 1.5},
        {"OrderId": 2, "price": None},
    ]
    assert run("table", "scan", "orders", "-w", "price > 1", "-w", "price < 5")["OrderId"] == 1
    assert run("table", "scan", "orders", "-w", "price is null", "--limit", "5")["OrderId"] == 2


def test_rows_are_read_from_standard_input(run: Run, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"UserId": "u3", "OrderId": 1, "price": 2}\n{"UserId": "u3", "OrderId": 2}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert run("table", "put", "orders")["rows"] == 2
    assert [row["price"] for row in run("table", "scan", "orders", "-w", "UserId = u3")] == [2.0, None]


def test_columns_of_rows_are_updated_by_key_and_by_file(run: Run, orders: str, tmp_path: Path) -> None:
    key = ["-k", "UserId=u1", "-k", "OrderId=1"]
    assert run("table", "update", "orders", *key, "--set", "price=9.5")["rows"] == 1
    assert run("table", "scan", "orders", "-w", "OrderId = 1", "-w", "UserId = u1")["price"] == 9.5
    run("table", "update", "orders", *key, "--set-null", "price")
    assert run("table", "scan", "orders", "-w", "OrderId = 1", "-w", "UserId = u1")["price"] is None
    (tmp_path / "prices.csv").write_text("UserId,OrderId,price\nu1,1,3\nu2,1,\n")
    assert run("table", "update", "orders", str(tmp_path / "prices.csv"), "--ignore-nulls")["rows"] == 2
    assert [row["price"] for row in run("table", "scan", "orders", "-w", "OrderId = 1")] == [3.0, 9.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either a file, or the key"),
        (["-k", "UserId=u1"], "either a file, or the key"),
        (["rows.csv", "-k", "UserId=u1"], "either a file, or the key"),
        (["-k", "UserId=u1", "-k", "OrderId=1", "--set", "UserId=u2"], "not a column whose value can be set"),
        (["-k", "UserId=u1", "-k", "OrderId=1", "--set", "price=x"], "does not fit its type"),
        (["-k", "UserId=u1", "-k", "OrderId=1", "--set", "price=1", "--set-null", "price"], "two new values"),
        (["-k", "UserId=u1", "--set", "price=1"], "OrderId"),
        (["-k", "UserId=u1", "-k", "OrderId=1", "--set", "price=1", "--ignore-nulls"], "for the rows of a file"),
    ],
)
def test_an_invalid_update_is_an_error(run: Run, orders: str, arguments: list[str], message: str) -> None:
    before = run("table", "scan", "orders")
    assert message in str(run("table", "update", "orders", *arguments, code=1)["error"])
    assert run("table", "scan", "orders") == before


def test_rows_are_deleted_by_key_and_by_file(run: Run, orders: str, tmp_path: Path) -> None:
    run("table", "delete", "orders", "-k", "UserId=u2", "-k", "OrderId=1")
    (tmp_path / "keys.csv").write_text("UserId,OrderId\nu1,1\n")
    assert run("table", "delete", "orders", str(tmp_path / "keys.csv"))["keys"] == 1
    assert run("table", "scan", "orders")["OrderId"] == 2
    assert "either a key or a file" in run("table", "delete", "orders", code=1)["error"]["message"]


def test_a_row_that_does_not_exist_is_reported(run: Run, store: str, orders: str, capsys: Any) -> None:
    key = ["--key", "UserId=u9", "--key", "OrderId=1"]
    assert run("table", "delete", "orders", *key) == {"table": "orders", "keys": 1, "missing": 1}
    assert run("table", "update", "orders", *key, "--set", "price=1") == {"table": "orders", "rows": 1, "inserted": 1}
    assert run("table", "update", "orders", *key, "--set", "price=2") == {"table": "orders", "rows": 1}
    assert run("table", "delete", "orders", *key) == {"table": "orders", "keys": 1}
    assert main(["table", "delete", "orders", *key, "-s", store]) == 0
    assert "Nothing was deleted" in capsys.readouterr().out


def test_partitions_split_and_merge(run: Run, orders: str) -> None:
    left, right = run("table", "split", "orders", "--at", "UserId=u2")["partitions"]
    partitions = [part for part in run("table", "describe", "orders")["partitions"] if part["open"]]
    assert [(part["partition"], part["rows"]) for part in partitions] == [(left, 2), (right, 1)]
    merged = run("table", "merge", "orders", str(left), str(right))["partition"]
    assert [part["partition"] for part in run("table", "describe", "orders")["partitions"] if part["open"]] == [merged]


def test_columns_and_options_change_and_logs_are_trimmed(run: Run, orders: str) -> None:
    assert run("table", "add-column", "orders", "note=string")["columns"] == {"note": "string"}
    changes = ("--drop", "note", "--add", "size=int", "--add", "note=string")
    assert run("table", "alter", "orders", *changes)["columns"]["note"] == "string"
    changed = run("table", "alter", "orders", "--rename", "size=amount", "--widen", "amount=long")
    assert changed["columns"]["amount"] == "long"
    settled = run("table", "set", "orders", "pre_images=true", "retention_seconds=none", "retention_bytes=1000")
    assert (settled["pre_images"], settled["retention_seconds"], settled["retention_bytes"]) == (True, None, 1000)
    assert "valid" in run("table", "set", "orders", "unknown=1", code=1)["error"]
    for option, received in (("pre_images", "perhaps"), ("retention_bytes", "1k")):
        error = run("table", "set", "orders", f"{option}={received}", code=1)["error"]
        assert f"option {option} must be" in error["message"]
        assert error["received"] == repr(received)
    assert run("table", "trim", "orders", "--before", "1=2")["changes"] >= 0
    assert run("table", "trim", "orders", "--before", "1=two", code=1)["error"]["received"] == "'two'"


def test_a_tunnel_follows_several_tables(run: Run, orders: str, store: str) -> None:
    with open_store(store) as opened:
        opened.create_table("items", {"id": "string"}, "id")
    created = run("tunnel", "create", "orders", "items", "sales")
    assert created["table"] == "orders,items"
    assert run("tunnel", "create", "--tables", "items,orders", "other")["table"] == "items,orders"
    assert {each["name"] for each in run("tunnel", "list", "--table", "items")} == {"sales", "other"}
    described = run("tunnel", "describe", "sales")
    assert (described["orders_unread"], described["items_unread"]) == (3, 0)
    shown = run("tunnel", "tail", "sales", "--no-follow")
    assert {row["_table"] for row in shown} == {"orders"}
    assert run("table", "drop", "items", code=1)["error"]["type"] == "InUseError"
    assert main(["tunnel", "create", "alone", "-s", store]) == 2


def test_tunnels_are_created_listed_described_and_dropped(run: Run, orders: str, store: str, capsys: Any) -> None:
    created = run("tunnel", "create", "orders", "stats", "--kind", "stream", "--start", "earliest")
    (listed,) = run("tunnel", "list", "--table", "orders")
    assert (listed["id"], listed["kind"], listed["lag_rows"]) == (created["id"], "Stream", 3)
    described = run("tunnel", "describe", created["id"])
    assert [channel["lag_rows"] for channel in described["channels"]] == [3]
    assert [channel["client"] for channel in described["channels"]] == [None]
    (channel,) = described["channels"]
    assert channel["checkpoint"] == channel["committed_position"]
    assert main(["tunnel", "describe", "stats", "-s", store]) == 0
    assert " row 0 " in capsys.readouterr().out
    run("tunnel", "create", "orders", "both")
    with open_store(store) as opened:
        both = opened.tunnel("both")
        base, _ = both.channels()
        both.commit({base.id: both.read(base.id, base.committed, 2).next})
    assert main(["tunnel", "describe", "both", "-s", store]) == 0
    assert " after key u1, 2 " in capsys.readouterr().out
    run("tunnel", "drop", "both")
    assert run("tunnel", "drop", "stats", "--if-exists") == {"tunnel": "stats", "dropped": True}
    assert run("tunnel", "drop", "stats", "--if-exists") == {"tunnel": "stats", "dropped": False}
    assert run("tunnel", "list") == []


def test_describe_shows_the_worker_of_a_channel(run: Run, store: str, orders: str) -> None:
    run("tunnel", "create", "orders", "stats", "--kind", "Stream", "--start", "earliest")
    with open_store(store).tunnel("stats").consume("worker 7") as batches:
        next(batches)
        (channel,) = run("tunnel", "describe", "stats")["channels"]
    assert channel["client_tag"] == "worker 7"
    assert channel["client"]


def test_tail_shows_base_data_and_changes_and_commits_nothing(run: Run, orders: str) -> None:
    run("tunnel", "create", "orders", "stats")
    run("table", "delete", "orders", "-k", "UserId=u2", "-k", "OrderId=1")
    for _ in range(2):
        shown = run("tunnel", "tail", "stats", "--no-follow")
        assert [row["_change_type"] for row in shown] == ["insert"] * 3 + ["delete"]
    assert len(run("tunnel", "tail", "stats", "--limit", "2")) == 2


def test_tail_from_the_start_shows_the_changes_after_base_data_that_was_read(run: Run, store: str, orders: str) -> None:
    run("tunnel", "create", "orders", "stats")
    run("table", "delete", "orders", "-k", "UserId=u2", "-k", "OrderId=1")
    with open_store(store) as opened:
        assert sum(len(batch) for batch in opened.tunnel("stats").consume(idle="stop")) == 4
    shown = run("tunnel", "tail", "stats", "--no-follow", "--start", "earliest")
    assert shown["_change_type"] == "delete"


def test_tail_continues_after_a_split(run: Run, orders: str) -> None:
    run("tunnel", "create", "orders", "stats", "--kind", "Stream", "--start", "earliest")
    run("table", "split", "orders", "--at", "UserId=u2")
    run("table", "delete", "orders", "-k", "UserId=u2", "-k", "OrderId=1")
    shown = run("tunnel", "tail", "stats", "--no-follow")
    assert [row["_change_type"] for row in shown] == ["insert"] * 3 + ["delete"]


def test_tail_shows_changes_as_they_arrive_until_it_is_interrupted(run: Run, orders: str, store: str) -> None:
    run("tunnel", "create", "orders", "stats", "--kind", "Stream")
    command = [sys.executable, "-m", "headrace.cli.main", "tunnel", "tail", "stats", "--json", "-s", store]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        run("table", "delete", "orders", "-k", "UserId=u1", "-k", "OrderId=1")
        assert json.loads(process.stdout.readline())["_change_type"] == "delete"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == ""
    finally:
        process.kill()
        process.communicate()


def test_options_are_accepted_before_and_after_the_command(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--json", "-s", store, "table", "list"], ["table", "list", "-s", store, "--json"]):
        assert main(arguments) == 1
        assert json.loads(capsys.readouterr().err)["error"]["type"] == "NotFoundError"


def test_the_store_comes_from_the_environment(
    orders: str, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_STORE", store)
    assert main(["table", "list"]) == 0
    assert "orders" in capsys.readouterr().out
    monkeypatch.delenv("HEADRACE_STORE")
    assert main(["table", "list"]) == 1
    assert "HEADRACE_STORE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    ["table create t -c id=long -k", "table create t -c id=long -k id --partition-by", "table scan orders --columns"],
)
@pytest.mark.parametrize("names", ["", " , "])
def test_an_option_without_a_name_is_an_error(
    store: str, orders: str, command: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), names, "-s", store]) == 2
    assert f"{command.split()[-1]}': {names!r} has no name" in capsys.readouterr().err.replace("' / '--key", "")


@pytest.mark.parametrize("arguments", [["nothing"], ["table"], ["table", "list", "--nothing"], ["table", "describe"]])
def test_the_exit_code_of_an_invalid_command_line_is_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"]


def test_an_unexpected_error_is_one_message_and_a_traceback_only_with_debug(
    orders: str, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("headrace.stores.embedded.store.EmbeddedStore.tables", broken)
    assert main(["table", "list", "-s", store]) == 1
    assert capsys.readouterr().err == (
        "error: ZeroDivisionError: a bug\nrun it again with --debug to see where it happened\n"
    )
    with pytest.raises(ZeroDivisionError):
        main(["table", "list", "-s", store, "--debug"])


@pytest.mark.parametrize("line", ["table scan orders", "table scan orders --json", "export orders -", "--help"])
def test_a_closed_pipe_ends_the_program_quietly(orders: str, store: str, line: str) -> None:
    with open_store(store) as opened:
        # More than standard output buffers.
        opened.table(orders).put([{"UserId": "u3", "OrderId": number, "price": 0.0} for number in range(1000)])
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "headrace.cli.main", *line.split()]
    environment = {**os.environ, "HEADRACE_STORE": store}
    with os.fdopen(writing, "wb") as closed_pipe:
        ended = subprocess.run(command, stdout=closed_pipe, stderr=subprocess.PIPE, text=True, env=environment)
    assert (ended.returncode, ended.stderr) == (141, "")


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("", True),
        ("-- a comment", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT ';", False),
        ("SELECT ';'", False),
        ("SELECT 1; // done", True),
        ("/* open ;", False),
    ],
)
def test_the_prompt_waits_for_a_semicolon_outside_of_strings_and_comments(text: str, complete: bool) -> None:
    from headrace.cli.prompt_lines import is_complete

    assert is_complete(text) == complete


def test_streams_of_a_workspace_are_shown_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.streaming_sql.stream_registry import StreamRegistry
    from headrace.streaming_sql.workspace import Workspace

    workspace = ["--workspace", str(tmp_path), "--json"]
    assert main(["stream", "list", *workspace]) == 0
    assert json.loads(capsys.readouterr().out) == []
    StreamRegistry(Workspace(tmp_path)).record_start(
        "job1", script="CREATE STREAM …", fingerprint="1", target="sink", checkpoint="/checkpoint"
    )
    StreamRegistry(Workspace(tmp_path)).set_ended("job1", "finished")
    assert main(["stream", "list", *workspace]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["state"], listed["target"]) == ("job1", "finished", "sink")
    StreamRegistry(Workspace(tmp_path)).set_ended("job1", "failed", "SchemaError: no such column")
    assert main(["stream", "list", "--workspace", str(tmp_path)]) == 0
    assert "SchemaError: no such column" in capsys.readouterr().out
    StreamRegistry(Workspace(tmp_path)).set_ended("job1", "finished")
    assert main(["stream", "describe", "JOB1", *workspace]) == 0
    assert json.loads(capsys.readouterr().out)["script"] == "CREATE STREAM …"
    assert main(["stream", "stop", "job1", *workspace]) == 0
    assert json.loads(capsys.readouterr().out) == {"stream": "job1", "state": "finished"}
    assert main(["stream", "explain", "unknown", *workspace]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["valid"] == "job1"
    assert main(["stream", "drop", "job1", *workspace]) == 0
    assert main(["stream", "drop", "job1", "--if-exists", *workspace]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("password:hunter2", "--store-option takes NAME=VALUE; received: 'password'"),
        ("create=hunter2", "unknown option of an embedded store; received: 'create'; valid: synchronous"),
        ("url=hunter2", "unknown option of an embedded store; received: 'url'; valid: synchronous"),
    ],
)
def test_a_wrong_option_of_the_store_is_named_without_its_value(
    store: str, capsys: pytest.CaptureFixture[str], given: str, message: str
) -> None:
    assert main(["table", "list", "-s", store, "--store-option", given]) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert message in shown
    assert "hunter2" not in shown
