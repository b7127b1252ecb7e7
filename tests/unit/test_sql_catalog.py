"""The workspace: definitions without secrets, streams with their owners, and invalid input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as s

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError
from headrace.options.secrets import NOT_STORED, hide, is_secret_name
from headrace.sql_text.lexer import fingerprint
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition
from headrace.streaming_sql.format_options import check_definition
from headrace.streaming_sql.scripts import options_text, scan_text
from headrace.streaming_sql.stream_options import read_stream_options
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace

SECRET = "t0p-secret"
DEFINITION = TableDefinition(
    "Orders", "tablestore", {"endpoint": "x", "access.key.id": "", "access.key.secret": SECRET}, None
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def files_hold(directory: Path, text: str) -> bool:
    return any(text.encode() in path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_reading_an_empty_workspace_writes_no_files(workspace: Workspace, tmp_path: Path) -> None:
    assert Catalog(workspace).tables() == []
    assert StreamRegistry(workspace).all() == []
    assert list(tmp_path.iterdir()) == []


def test_definitions_persist_without_their_secrets(workspace: Workspace, tmp_path: Path) -> None:
    catalog = Catalog(workspace)
    catalog.add_table(DEFINITION)
    assert catalog.table("ORDERS").resolved_options()["access.key.secret"] == SECRET
    later = Catalog(Workspace(tmp_path)).table("orders")
    assert later.options == {"endpoint": "x", "access.key.id": "", "access.key.secret": NOT_STORED}
    with pytest.raises(OptionError, match=r"access\.key\.secret of table Orders.*\$\{env:NAME\}"):
        later.resolved_options()
    workspace.close()
    assert not files_hold(tmp_path, SECRET)


def test_the_same_definition_again_restores_its_secrets(workspace: Workspace, tmp_path: Path) -> None:
    assert Catalog(workspace).add_table(DEFINITION)
    later = Catalog(Workspace(tmp_path))
    assert not later.add_table(DEFINITION)
    assert later.table("Orders").resolved_options()["access.key.secret"] == SECRET


def test_another_definition_of_a_name_is_an_error(workspace: Workspace) -> None:
    catalog = Catalog(workspace)
    catalog.add_table(DEFINITION)
    other = TableDefinition("orders", "headrace", {"store": "shop"}, None)
    with pytest.raises(AlreadyExistsError, match="DROP TABLE orders"):
        catalog.add_table(other)
    assert not catalog.add_table(other, if_not_exists=True)
    assert catalog.table("orders").provider == "tablestore"
    assert catalog.drop_table("orders")
    assert not catalog.drop_table("orders")
    assert catalog.add_table(other)


def test_the_error_for_an_unknown_table_lists_the_tables(workspace: Workspace) -> None:
    catalog = Catalog(workspace)
    catalog.add_table(DEFINITION)
    with pytest.raises(NotFoundError, match=r"received: order; valid: Orders"):
        catalog.table("order")


def test_environment_variables_are_read_at_each_use(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalog(workspace).add_table(TableDefinition("t", "p", {"access.key.secret": "${env:HEADRACE_KEY}"}, None))
    table = Catalog(Workspace(tmp_path)).table("t")
    monkeypatch.delenv("HEADRACE_KEY", raising=False)
    with pytest.raises(OptionError, match=r"access\.key\.secret of table t.*HEADRACE_KEY"):
        table.resolved_options()
    monkeypatch.setenv("HEADRACE_KEY", SECRET)
    assert table.resolved_options() == {"access.key.secret": SECRET}


def test_options_of_a_scan_override_those_of_its_table() -> None:
    table = TableDefinition("t", "p", {"tunnel.id": "1", "Path": "a"}, None)
    assert table.resolved_options({"PATH": "b", "x": "2"}) == {"tunnel.id": "1", "PATH": "b", "x": "2"}


def test_a_scan_is_replaced_only_by_or_replace(workspace: Workspace) -> None:
    catalog = Catalog(workspace)
    scan = ScanDefinition("V", "t", True, {"tunnel.id": "1"})
    assert catalog.add_scan(scan)
    assert not catalog.add_scan(scan)
    other = ScanDefinition("v", "t", False, {})
    with pytest.raises(AlreadyExistsError, match="OR REPLACE"):
        catalog.add_scan(other)
    catalog.add_scan(other, replace=True)
    assert catalog.find_scan("V") == other


@pytest.mark.parametrize(
    "name",
    [
        "access.key.secret",
        "access.key.id",
        "apiKey",
        "fs.s3a.secret.key",
        "password",
        "sas_token",
        "AWS-Credential",
        "kafka.sasl.jaas.config",
        "kafka.ssl.key.password",
        "kafka.ssl.truststore.password",
    ],
)
def test_secret_options_are_known_by_their_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "primaryKey",
        "primary.key",
        "keyColumns",
        "kafka.key.deserializer",
        "includeKey",
        "path",
        "tunnel.id",
        "kafka.ssl.keystore.location",
        "kafka.sasl.oauthbearer.token.endpoint.url",
    ],
)
def test_harmless_names(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_are_not_shown() -> None:
    assert SECRET not in repr(DEFINITION)
    assert SECRET not in options_text(DEFINITION.options)
    assert "hunter22" not in options_text({"store": "postgresql://me:hunter22@host/db"})
    assert "hunter22" not in options_text({"url": "jdbc:postgresql://host/db?user=me&password=hunter22"})
    assert SECRET not in scan_text(ScanDefinition("v", "t", True, {"token": SECRET}))
    assert hide(f"a {SECRET} b", {SECRET}) == "a *** b"


def test_white_space_and_comments_do_not_change_a_fingerprint() -> None:
    assert fingerprint("CREATE STREAM a\n INSERT INTO t -- x\n SELECT 1") == fingerprint(
        "CREATE STREAM a INSERT INTO t SELECT 1 // y"
    )
    assert fingerprint("SELECT 'a b'") != fingerprint("SELECT 'a  b'")


# -- options of headrace's formats ------------------------------------------------------------------------


def test_options_of_a_definition_are_checked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    check_definition("Headrace", {"STORE": "shop", "table": "Orders", "splits": "4"})
    check_definition("headrace", {"store": "${env:SHOP}", "queue": "clicks", "failOnDataLoss": "${env:STRICT}"})


@pytest.mark.parametrize(
    ("provider", "options", "says"),
    [
        ("headrace", {"table": "Orders"}, "option store is missing"),
        ("headrace", {"store": "shop", "tabel": "Orders"}, "did you mean table?"),
        ("headrace", {"store": "shop", "table": "Orders", "splits": "many"}, "splits"),
        ("tablestore", {"endpoint": "shop", "instance.name": "i"}, "table.name"),
        ("yt", {"path": "//tmp/q", "max_rows_per_partitions": "1"}, "did you mean max_rows_per_partition?"),
    ],
)
def test_wrong_options_of_a_definition_are_refused(
    provider: str, options: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    with pytest.raises(OptionError, match=re.escape(says)):
        check_definition(provider, options)


# -- streams --------------------------------------------------------------------------------------------


def record_start(registry: StreamRegistry, text: str = "a") -> None:
    registry.record_start("S", script="CREATE STREAM S", fingerprint=text, target="t", checkpoint="cp")


def test_a_running_stream_cannot_be_created_again(workspace: Workspace) -> None:
    registry = StreamRegistry(workspace)
    record_start(registry)
    registry.set_running("s", "id")
    with pytest.raises(AlreadyExistsError, match="already running"):
        record_start(registry)
    registry.set_ended("S", "failed", "why")
    with pytest.raises(AlreadyExistsError, match="DROP STREAM S first"):
        record_start(registry, "b")
    record_start(registry)
    assert registry.get("s").state == "starting"
    assert registry.get("s").error is None


def test_a_request_to_stop_ends_with_the_next_start(workspace: Workspace, tmp_path: Path) -> None:
    registry, other = StreamRegistry(workspace), StreamRegistry(Workspace(tmp_path))
    record_start(registry)
    other.ask_to_stop("S")
    assert registry.asked_to_stop() == {"s"}
    registry.set_ended("S", "stopped")
    other.wait_until_ended("S", 1)
    record_start(registry)
    assert registry.asked_to_stop() == set()


OTHER_PROCESS = """
import sys
from headrace.streaming_sql.format_options import check_definition
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
registry = StreamRegistry(Workspace(sys.argv[1]))
registry.record_start("s", script="x", fingerprint="a", target="t", checkpoint="cp")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_stream_of_a_dead_process_is_lost_and_can_be_taken_over(workspace: Workspace, tmp_path: Path) -> None:
    registry = StreamRegistry(workspace)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert registry.get("s").state == "starting"
        with pytest.raises(AlreadyExistsError, match=f"in process {process.pid}"):
            record_start(registry)
        process.kill()
    assert registry.get("s").state == "lost"
    record_start(registry)
    assert registry.get("s").pid == os.getpid()


FIRST_WRITERS = """
import sys
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.workspace import Workspace
sys.stdin.readline()
workspace = Workspace(sys.argv[1])
Catalog(workspace).add_table(TableDefinition("t" + sys.argv[2], "p", {}))
print(workspace.owner())
"""


def test_many_processes_can_create_a_workspace_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FIRST_WRITERS, str(tmp_path), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(6)
    ]  # fmt: skip
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    owners = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0] * 6
    assert len(owners) == 6
    assert len(Catalog(Workspace(tmp_path)).tables()) == 6


def test_a_damaged_workspace_raises_a_headrace_error(tmp_path: Path) -> None:
    directory = tmp_path / ".headrace"
    directory.mkdir()
    (directory / "workspace.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(HeadraceError, match="damaged"):
        Catalog(Workspace(tmp_path)).tables()


def test_a_damaged_definition_raises_a_headrace_error(workspace: Workspace, tmp_path: Path) -> None:
    Catalog(workspace).add_table(DEFINITION)
    workspace.close()
    connection = apsw.Connection(str(tmp_path / ".headrace" / "workspace.db"))
    connection.execute("UPDATE definition SET definition = '{}'")
    connection.close()
    with pytest.raises(HeadraceError, match="create the table again"):
        Catalog(workspace).tables()


# -- options --------------------------------------------------------------------------------------------


def test_options_of_a_stream_are_read_in_any_case() -> None:
    options = read_stream_options(
        "s",
        {"CheckpointLocation": "cp", "OUTPUTMODE": "Update", "triggerInterval": "30000", "rowChange": "update"},
    )
    assert (options.checkpoint, options.output_mode) == ("cp", "update")
    assert options.trigger == {"processingTime": "30000 milliseconds"}
    assert options.sink == {"rowChange": "update"}
    assert read_stream_options("s", {}).checkpoint is None
    assert read_stream_options("s", {"checkpointLocation": "cp", "triggerType": "once"}).trigger == {"once": True}
    now = read_stream_options("s", {"checkpointLocation": "cp", "triggerIntervalMs": "5"}, available_now=True)
    assert now.trigger == {"availableNow": True}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkpointLocation": ""}, "needs option checkpointLocation"),
        ({"checkpointLocations": "x"}, "did you mean checkpointLocation?"),
        ({"checkpointLocation": "x", "outputmod": "update"}, "did you mean outputMode?"),
        ({"checkpointLocation": "x", "outputMode": "upsert"}, "append, update, complete"),
        ({"checkpointLocation": "x", "triggerType": "Continuous"}, "ProcessingTime, AvailableNow, Once"),
        ({"checkpointLocation": "x", "triggerIntervalMs": "5s"}, "milliseconds"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        read_stream_options("s", options)


# -- any input ------------------------------------------------------------------------------------------

TEXTS = s.text(max_size=20)


@settings(deadline=None)
@given(TEXTS, TEXTS, s.dictionaries(TEXTS, TEXTS), s.none() | TEXTS)
def test_definitions_survive_json(name: str, provider: str, options: dict[str, str], columns: str | None) -> None:
    definition = TableDefinition(name, provider, options, columns)
    assert TableDefinition.from_json(definition.to_json()) == definition


JSON_VALUES = s.recursive(
    s.none() | s.booleans() | s.integers() | s.floats() | TEXTS,
    lambda inner: (
        s.lists(inner, max_size=3)
        | s.dictionaries(s.sampled_from(["name", "provider", "options", "columns", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(s.one_of(s.text(), JSON_VALUES.map(json.dumps), s.integers(1, 100_000).map(lambda depth: "[" * depth)))
def test_any_json_is_read_or_raises_a_headrace_error(text: str) -> None:
    try:
        definition = TableDefinition.from_json(text)
    except HeadraceError:
        return
    assert isinstance(definition.options, dict)


@settings(deadline=None)
@given(
    s.dictionaries(
        s.sampled_from(["checkpointLocation", "outputMode", "triggerType", "triggerInterval"]) | TEXTS, TEXTS
    )
)
def test_any_options_are_read_or_raise_a_headrace_error(options: dict[str, str]) -> None:
    try:
        read_stream_options("s", options)
    except HeadraceError:
        return
