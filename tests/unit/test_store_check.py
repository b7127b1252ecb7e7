"""`headrace store check`: each invariant of an embedded store is damaged by itself, and found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import main
from headrace.model.findings import Finding, Status
from headrace.model.tables.changes import RowChange
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd, ChannelPlan
from headrace.ports import Write
from headrace.stores.embedded.checks.store import CHECKS
from tests.embedded_database import raw_connection, with_checksum


def fill(directory: Path) -> None:
    """Create a store with rows of all SQLite tables."""
    with headrace.open(directory, create=True, synchronous="off") as store:
        orders = store.create_table("orders", {"id": "long", "note": "string"}, "id")
        orders.put([{"id": number, "note": "n"} for number in range(100)])
        tunnel = store.create_tunnel("orders", "changes")
        orders.split()
        orders.put([{"id": number, "note": "m"} for number in range(0, 100, 3)])
        orders.put([{"id": 1, "note": "l"}])
        channel = tunnel.channels()[0]
        plan = ChannelPlan(channel.id, channel.committed, 10, None)
        tunnel.batches.save_plan(BatchPlan("batch", INITIAL_BATCH, (plan,)))
        tunnel.batches.record_end("batch", channel.id, ChannelEnd(channel.committed, 0))
        queue = store.create_queue("clicks", {"n": "long"}, partitions=2)
        for number in range(5):
            queue.append([{"n": number}], partition=1)
        store.create_consumer("reader")
        store.register_consumer("clicks", "reader", vital=True)
        store.consumer("reader").advance("clicks", {1: 3}, {1: 0})
        store.create_producer("writer")
        session = store.producer("writer").open_session("clicks", "session")
        store.producer("writer").push(session, [{"n": 9}], sequence_number=0, partition=0)
        publisher = store.publisher("job")
        rows = pa.RecordBatch.from_pydict({"id": [1000], "note": ["published"]})
        publisher.publish(0, [Write("orders", RowChange.PUT, tuple(publisher.stage(0, [rows])))])
        publisher.stage(1, [rows])
        many = pa.RecordBatch.from_pydict({"n": list(range(10_000))})
        publisher.stage_append(1, "clicks", [many])
        store.files().write("/job/state", b"s" * 2_000_000)
        store.files().write("/job/empty", b"")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    return directory


@pytest.fixture
def directory(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


def execute(directory: Path, *statements: str) -> None:
    connection = raw_connection(directory)
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def check(directory: Path, *, repair: bool = False) -> dict[str, Finding]:
    """Return the findings that are not OK, by name; with ``repair``, those of a later check."""
    with headrace.open(directory) as store:
        if repair:
            store.check(repair=True)
        return {finding.name: finding for finding in store.check() if finding.status != Status.OK}


def test_an_intact_store_has_no_problem(directory: Path) -> None:
    with headrace.open(directory) as store:
        before = list(store.table("orders").scan().read_all().to_pylist())
        assert [finding.name for finding in store.check()] == list(CHECKS)
        assert {finding.status for finding in store.check(repair=True)} == {Status.OK}
        assert store.table("orders").scan().read_all().to_pylist() == before
    assert check(directory) == {}


# The damage, the check that finds it, and a part of its message.
REPAIRED = [
    ("UPDATE partition SET rows = rows + 7 WHERE open AND low IS NULL AND number IS NULL",
     "rows and partitions of tables", "counts 5"),
    ("UPDATE partition SET log_bytes = 1 WHERE number = 1", "change logs and queues", "counts 1 bytes"),
    ("INSERT INTO blob (data) VALUES (x'00')", "binaries", "1 binaries that no chunk and no staged rows use"),
    ("INSERT INTO channel SELECT 'gone', seq, id, kind, partition, low, high, parents, start, checkpoint, finished,"
     " sequence, lease, version, client, since, suspended, object FROM channel", "tunnels",
     "channels of dropped tunnels"),
    ("INSERT INTO tunnel_table VALUES ('gone', 0, 1)", "tunnels", "tables of dropped tunnels"),
    ("INSERT INTO tunnel_client VALUES ('c', 'gone', '', 1, 1, 1)", "tunnels", "clients of dropped tunnels"),
    ("INSERT INTO snapshot (object, tunnel, version, ts) VALUES (1, 'gone', 1, 1)", "base data", "of dropped tunnels"),
    ("INSERT INTO u1 (snapshot, k0, present) VALUES (99, 1, 0)", "base data", "old rows of table 1"),
    ("INSERT INTO batch_plan SELECT 'gone', batch, root, depth, previous, plan FROM batch_plan",
     "plans and ends of batches", "plans of dropped tunnels"),
    ("UPDATE batch_end SET batch = 'other'", "plans and ends of batches", "ends without a plan"),
    ("UPDATE marker SET batch = 1", "staged rows", "2 staged rows of published batches"),
    ("UPDATE stage SET queue = 99 WHERE queue IS NOT NULL", "staged rows", "1 staged rows for dropped queues"),
    ("INSERT INTO registration VALUES (2, 99, 1)", "consumers and producers", "rows of registration"),
    ("INSERT INTO consumer_offset VALUES (99, 3, 0, 1, 1, 1, NULL)", "consumers and producers", "rows of consumer_"),
    ("UPDATE producer_session SET producer = 99", "consumers and producers", "rows of producer_session"),
    ("INSERT INTO object_schema VALUES (99, 1, x'', '[]')", "catalog", "column lists of dropped tables"),
    ("INSERT INTO file_part VALUES (99 << 24, x'00')", "files", "1 parts of files that do not exist"),
]  # fmt: skip

REPORTED = [
    ("DROP TABLE marker", "catalog", "table marker of the database lacks"),
    ("DELETE FROM clock", "catalog", "the clock has 0 rows"),
    ("UPDATE object SET kind = 'view' WHERE name = 'reader'", "catalog", "unknown kind 'view'"),
    ("DROP TABLE u1", "catalog", "has no SQLite table u1"),
    ("CREATE TABLE t77 (x)", "catalog", "SQLite table t77 belongs to no table"),
    ("UPDATE object_schema SET schema = x'00' WHERE object = 1", "catalog", "cannot be read"),
    ("UPDATE object SET schema_version = 2 WHERE name = 'orders'", "catalog", "column lists [1] instead of 1 to 2"),
    ("""UPDATE partition SET low = '[77]' WHERE open AND low IS NOT NULL""", "rows and partitions of tables",
     "do not cover each key once"),
    ("UPDATE t1 SET f = x'00' WHERE k0 = 5", "rows and partitions of tables", "1 rows of table 'orders' have a wrong"),
    ("UPDATE partition SET number = 5 WHERE number = 1", "partitions of queues", "have the numbers [0, 5]"),
    ("UPDATE partition SET object = 99 WHERE number = 1", "partitions of queues", "belongs to no table or queue"),
    ("DELETE FROM chunk WHERE id = (SELECT id << 40 FROM partition WHERE number = 1)", "change logs and queues",
     "has no rows 0 to 0"),
    ("DELETE FROM chunk WHERE id = (SELECT id << 40 | 2 FROM partition WHERE number = 1)", "change logs and queues",
     "has no rows 2 to 2"),
    ("DELETE FROM chunk WHERE id = (SELECT id << 40 | 4 FROM partition WHERE number = 1)", "change logs and queues",
     "ends at row 4 instead of 5"),
    ("UPDATE partition SET next = 9 WHERE number = 1", "change logs and queues", "ends at row 5 instead of 9"),
    ("UPDATE chunk SET n = 2 WHERE id = (SELECT id << 40 | 4 FROM partition WHERE number = 1)",
     "change logs and queues", "has 1 rows instead of 2"),
    ("UPDATE chunk SET version = 1 WHERE id = (SELECT id << 40 | 4 FROM partition WHERE number = 1)",
     "change logs and queues", "versions of commits are not in order"),
    ("UPDATE clock SET version = 3", "change logs and queues", "is after the clock of the store, 3"),
    ("UPDATE chunk SET commits = x'00' WHERE id = (SELECT id << 40 FROM partition WHERE number = 1)",
     "change logs and queues", "list of commits cannot be read"),
    ("UPDATE chunk SET schema = 8 WHERE id = (SELECT id << 40 FROM partition WHERE number = 1)",
     "change logs and queues", "version 8 of the columns does not exist"),
    ("UPDATE chunk SET data = x'0011' WHERE id = (SELECT id << 40 FROM partition WHERE number = 1)",
     "change logs and queues", "the data cannot be read"),
    ("UPDATE chunk SET id = id + (90 << 40) WHERE id = (SELECT id << 40 FROM partition WHERE number = 1)", "chunks",
     "1 chunks belong to no partition"),
    ("DELETE FROM blob", "binaries", "the bytes of 1 rows of SQLite table stage are missing"),
    ("UPDATE stage SET data = x'00' WHERE queue IS NULL", "staged rows", "cannot be read"),
    ("UPDATE stage SET n = 5 WHERE queue IS NULL", "staged rows", "are 1 instead of 5"),
    ("UPDATE tunnel SET object = 99", "tunnels", "belongs to a table that does not exist"),
    ("UPDATE channel SET checkpoint = 'x'", "tunnels", "has a position that cannot be read"),
    ("UPDATE channel SET checkpoint = 'eyJyIjo5OTl9' WHERE kind = 'Stream'", "tunnels", "is at row 999"),
    ("UPDATE channel SET partition = 99 WHERE kind = 'Stream'", "tunnels", "reads a partition that does not exist"),
    ("DELETE FROM snapshot", "base data", "has unread base data and no snapshot"),
    ("UPDATE batch_plan SET plan = '{'", "plans and ends of batches", "cannot be read"),
    ("UPDATE batch_plan SET previous = 'else'", "plans and ends of batches", "is the plan of batch"),
    ("UPDATE batch_end SET position = '[]'", "plans and ends of batches", "cannot be read"),
    ("UPDATE marker SET batch = -1", "markers", "has the batch -1"),
    ("UPDATE consumer_offset SET number = 7", "consumers and producers", "at the invalid row 3 of partition 7"),
    ("UPDATE file_node SET parent = 99 WHERE name = 'state'", "files", "'state' (3) is in no directory"),
    ("DELETE FROM file_part WHERE id = 3 << 24", "files", "has 951424 of 2000000 bytes"),
    ("UPDATE file_part SET id = id + 5 WHERE id = (3 << 24) + 1", "files", "in a wrong order"),
    ("UPDATE file_node SET directory = 0 WHERE id = 1", "files", "no root directory"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "name", "says"), REPAIRED, ids=[each[0][:40] for each in REPAIRED])
def test_damage_that_loses_nothing_is_found_and_repaired(directory: Path, damage: str, name: str, says: str) -> None:
    execute(directory, damage)
    found = check(directory)
    assert says in found[name].found
    assert set(found) == {name}
    assert found[name].status == Status.WARN
    assert "store check --repair` would" in found[name].remedy
    with headrace.open(directory) as store:
        rows = store.table("orders").scan().read_all().to_pylist()
        repaired = {finding.name: finding for finding in store.check(repair=True)}
        assert repaired[name].found.startswith("repaired: ")
        assert store.table("orders").scan().read_all().to_pylist() == rows
    assert check(directory) == {}


@pytest.mark.parametrize(("damage", "name", "says"), REPORTED, ids=[each[0][:40] for each in REPORTED])
def test_damage_that_could_lose_data_is_found_and_not_touched(
    directory: Path, damage: str, name: str, says: str
) -> None:
    execute(directory, damage)
    found = check(directory)
    assert says in found[name].found
    assert found[name].status == Status.FAIL
    assert "restore a backup" in found[name].remedy
    assert says in check(directory, repair=True)[name].found


def test_a_damaged_index_is_built_again(directory: Path) -> None:
    connection = raw_connection(directory)
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'stage_batch'")
    connection.close()
    _empty_index(directory, root)
    found = check(directory)["SQLite's integrity"]
    assert "missing from index stage_batch" in found.found
    assert (found.status, "build index stage_batch again" in found.remedy) == (Status.WARN, True)
    assert check(directory, repair=True) == {}


def _empty_index(directory: Path, root: int) -> None:
    """Set the number of cells of an index's root page to 0, without a process that has the database open."""
    file = directory / "db"
    content = bytearray(file.read_bytes())
    start = (root - 1) * 4096
    assert content[start] == 0x0A, "not a leaf of an index"
    content[start + 3 : start + 5] = b"\x00\x00"
    content[start + 5 : start + 7] = (4096 - 8).to_bytes(2, "big")
    content[start + 1 : start + 3] = b"\x00\x00"
    content[start + 7] = 0
    content[start : start + 4096] = with_checksum(content[start : start + 4096])
    file.write_bytes(content)


def test_a_damaged_page_is_found_by_check_and_doctor(directory: Path) -> None:
    connection = raw_connection(directory)
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'file_part'")
    connection.close()
    content = bytearray((directory / "db").read_bytes())
    content[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    (directory / "db").write_bytes(content)
    found = check(directory)
    assert found["SQLite's integrity"].status == Status.FAIL
    assert "cannot be completed" in found["files"].found
    with headrace.open(directory) as store:
        integrity = next(finding for finding in store.diagnose() if finding.name == "Store: integrity")
    assert (integrity.status, integrity.found) == (Status.FAIL, found["SQLite's integrity"].found)


def test_the_check_sees_one_state_while_writers_go_on(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with headrace.open(directory) as store:
        writer = headrace.open(directory)

        def write(connection: apsw.Connection) -> Iterator[Any]:
            # Between two checks.
            writer.table("orders").put([{"id": number, "note": "new"} for number in range(5000, 5100)])
            writer.queue("clicks").append([{"n": 1}], partition=0)
            return iter(())

        monkeypatch.setitem(CHECKS, "markers", write)
        monkeypatch.setitem(CHECKS, "catalog", write)
        assert {finding.status for finding in store.check()} == {Status.OK}
        writer.close()


def test_the_command_checks_and_repairs(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "check", str(directory)]) == 0
    assert f"{len(CHECKS)} ok, 0 warn, 0 fail" in capsys.readouterr().out
    execute(directory, REPAIRED[1][0])
    assert main(["store", "check", "-s", str(directory)]) == 0
    assert "would count its bytes" in capsys.readouterr().out
    assert main(["store", "check", str(directory), "--repair", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["found"] for each in findings if each["found"].startswith("repaired")] == ["repaired: count its bytes"]
    execute(directory, "UPDATE marker SET batch = -1")
    assert main(["store", "check", str(directory)]) == 1
    assert "FAIL" in capsys.readouterr().out
