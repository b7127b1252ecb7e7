"""Static tables in master transactions, with YTsaurus' client."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from yt.wrapper import TablePath, YtClient, YtResponseError
from yt.wrapper.errors import YtCypressTransactionLockConflict, YtNoSuchTransaction

from tests.ytsaurus.interop.ytsaurus_server import YtServer, serving

SCHEMA = [{"name": "a", "type": "int64"}, {"name": "s", "type": "string"}]


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"a": number, "s": str(number)} for number in numbers]


def numbers(client: YtClient, path: str) -> list[int]:
    return [row["a"] for row in client.read_table(path)]


@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["schema", "no schema"])
def test_rows_are_visible_to_others_after_the_commit(yt_server: YtServer, home: str, schema: Any) -> None:
    client, other = yt_server.client(), yt_server.client()
    table = f"{home}/t"
    client.create("table", table, attributes={} if schema is None else {"schema": schema})
    client.write_table(table, rows(1))
    with client.Transaction():
        client.write_table(TablePath(table, append=True), rows(2))
        with client.Transaction():
            client.write_table(TablePath(table, append=True), rows(3))
            client.set(f"{table}/@mark", 1)
        client.write_table(f"{home}/made", rows(7))
        assert numbers(client, table) == [1, 2, 3]
        assert client.get(f"{table}/@row_count") == client.get(f"{table}/@chunk_count") == 3
        assert numbers(other, table) == [1]
        assert other.get(f"{table}/@row_count") == 1
        assert not other.exists(f"{table}/@mark")
        assert not other.exists(f"{home}/made")
        with pytest.raises(YtCypressTransactionLockConflict):
            other.write_table(table, rows(4))
        other.write_table(TablePath(table, append=True), rows(5))
        assert numbers(client, table) == [1, 2, 3]
    assert numbers(other, table) == [1, 5, 2, 3]
    assert (other.get(f"{table}/@mark"), numbers(other, f"{home}/made")) == (1, [7])


def test_rows_of_an_aborted_transaction_are_discarded(yt_server: YtServer, home: str) -> None:
    client, other = yt_server.client(), yt_server.client()
    table = f"{home}/t"
    client.write_table(table, rows(1))
    transaction = client.start_transaction()
    with client.Transaction(transaction_id=transaction):
        client.write_table(table, rows(2))
        client.write_file(f"{home}/f", b"x")
        client.move(table, f"{home}/moved")
        client.copy(f"{home}/moved", f"{home}/copy")
        client.concatenate([f"{home}/copy", f"{home}/copy"], TablePath(f"{home}/moved", append=True))
        assert numbers(client, f"{home}/moved") == [2, 2, 2]
        client.remove(f"{home}/copy")
        client.alter_table(f"{home}/moved", schema=SCHEMA)
        assert numbers(other, table) == [1]
    client.abort_transaction(transaction)
    assert other.list(home) == ["t"]
    assert numbers(other, table) == [1]
    assert other.get(f"{table}/@schema_mode") == "weak"
    assert other.get(f"{table}/@lock_count") == 0


def test_a_broken_body_changes_nothing_for_its_transaction(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    table = f"{home}/t"
    client.create("table", table, attributes={"schema": SCHEMA})
    with client.Transaction():
        client.write_table(table, rows(1))
        for body in (b"{a=2};{a=", b'{a=2};{a="text"};', b"{a=2};{b=1};"):
            for path in (table, TablePath(table, append=True)):
                with pytest.raises(YtResponseError):
                    client.write_table(path, [body], raw=True, format="yson")
        assert numbers(client, table) == [1]
    assert numbers(client, table) == [1]


def test_sorted_rows_are_appended_in_order(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    table = TablePath(f"{home}/t", sorted_by=["a"])
    more = TablePath(f"{home}/t", sorted_by=["a"], append=True)
    client.write_table(table, rows(1, 2))
    with client.Transaction():
        client.write_table(more, rows(2, 3))
        with pytest.raises(YtResponseError) as order:
            client.write_table(more, rows(1))
        assert order.value.contains_code(301)
        assert client.get(f"{home}/t/@sorted_by") == ["a"]
    assert numbers(client, f"{home}/t") == [1, 2, 2, 3]


def test_concurrent_writers_neither_lose_nor_duplicate_rows(yt_server: YtServer, home: str) -> None:
    """Four clients append by transactions to one table; every third one fails."""
    table, file = f"{home}/t", f"{home}/f"
    yt_server.client().create("table", table)
    yt_server.client().create("file", file)
    failed: list[BaseException] = []

    def write(writer: int) -> None:
        client = yt_server.client()
        try:
            for number in range(5):
                transaction = client.start_transaction()
                with client.Transaction(transaction_id=transaction):
                    for part in range(2):
                        key = 100 * writer + 10 * number + part
                        client.write_table(TablePath(table, append=True), rows(key))
                        client.write_file(f"<append=%true>{file}", b"%d\n" % key)
                (client.abort_transaction if number % 3 == 2 else client.commit_transaction)(transaction)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    client = yt_server.client()
    found = numbers(client, table)
    wanted = [[100 * w + 10 * n, 100 * w + 10 * n + 1] for w in range(4) for n in (0, 1, 3, 4)]
    pairs = [found[place : place + 2] for place in range(0, len(found), 2)]
    assert sorted(pairs) == wanted
    lines = [int(line) for line in client.read_file(file).read().split()]
    assert sorted(lines[place : place + 2] for place in range(0, len(lines), 2)) == wanted


def test_rows_of_an_expired_transaction_are_discarded(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    table = f"{home}/t"
    client.write_table(table, rows(1))
    transaction = client.start_transaction(timeout=5000)
    with client.Transaction(transaction_id=transaction, ping=False):
        client.write_table(table, rows(2))
        assert numbers(client, table) == [2]
    while client.exists(f"#{transaction}"):
        assert numbers(client, table) == [1]
    client.write_table(table, rows(3))
    with pytest.raises(YtNoSuchTransaction):
        client.commit_transaction(transaction)
    assert numbers(client, table) == [3]


def test_a_kill_between_write_and_commit_keeps_the_transaction_and_hides_its_rows(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.write_table("//tmp/t", rows(1))
        kept, left = (client.start_transaction(timeout=60_000) for _ in range(2))
        for transaction, number in ((kept, 2), (left, 3)):
            with client.Transaction(transaction_id=transaction, ping=False):
                client.write_table(TablePath("//tmp/t", append=True), rows(number))
        server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert numbers(client, "//tmp/t") == [1]
        with client.Transaction(transaction_id=kept, ping=False):
            assert numbers(client, "//tmp/t") == [1, 2]
            client.write_table(TablePath("//tmp/t", append=True), rows(4))
        client.commit_transaction(kept)
        client.abort_transaction(left)
        assert numbers(client, "//tmp/t") == [1, 2, 4]
        server.kill()
    with serving(tmp_path) as server:
        assert numbers(server.client(), "//tmp/t") == [1, 2, 4]
