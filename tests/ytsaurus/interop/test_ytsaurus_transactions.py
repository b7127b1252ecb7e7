"""Master transactions and locks, with YTsaurus' client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from yt.wrapper import YtClient, YtResponseError
from yt.wrapper.errors import (
    YtCypressTransactionLockConflict,
    YtNoSuchTransaction,
)

from tests.ytsaurus.interop.ytsaurus_server import YtServer


@pytest.fixture(scope="module")
def client(yt_server: YtServer) -> YtClient:
    return yt_server.client()


# -- transactions -----------------------------------------------------------------------------------------------


def test_changes_are_visible_after_the_commit_of_all_outer_transactions(yt_server: YtServer, home: str) -> None:
    client, other = yt_server.client(), yt_server.client()
    with client.Transaction():
        client.set(f"{home}/a", 1)
        with client.Transaction():
            client.set(f"{home}/b", 2)
            client.set(f"{home}/a", 3)
            assert client.get(home) == {"a": 3, "b": 2}
        assert client.get(home) == {"a": 3, "b": 2}
        assert other.get(home) == {}
    assert other.get(home) == {"a": 3, "b": 2}


def test_an_abort_discards_all_changes(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    client.set(f"{home}/m", {"a": 1})
    transaction = client.start_transaction()
    with client.Transaction(transaction_id=transaction):
        client.set(f"{home}/new", 1)
        client.remove(f"{home}/m", recursive=True)
        client.set(f"{home}/@mark", 1)
        client.write_file(f"{home}/f", b"x")
        assert client.list(home) == ["f", "new"]
    client.abort_transaction(transaction)
    assert client.get(home) == {"m": {"a": 1}}
    assert not client.exists(f"{home}/@mark")


def test_moves_in_a_transaction_are_atomic(yt_server: YtServer, home: str) -> None:
    client, other = yt_server.client(), yt_server.client()
    client.set(f"{home}/a", {"x": 1})
    with client.Transaction():
        client.move(f"{home}/a", f"{home}/b")
        client.set(f"{home}/b/y", 2)
        assert client.get(home) == {"b": {"x": 1, "y": 2}}
        assert other.get(home) == {"a": {"x": 1}}
    assert other.get(home) == {"b": {"x": 1, "y": 2}}


def test_a_master_transaction_without_pings_expires(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    started = client.start_transaction(timeout=300)
    with client.Transaction(transaction_id=started):
        client.lock(home)
    pinged = client.start_transaction(timeout=300)
    while client.exists(f"#{started}"):
        client.ping_transaction(pinged)
    client.set(f"{home}/@mark", 1)
    with pytest.raises(YtNoSuchTransaction):
        client.ping_transaction(started)
    with pytest.raises(YtNoSuchTransaction), client.Transaction(transaction_id=started):
        client.set(f"{home}/x", 1)
    assert client.get(f"#{pinged}/@timeout") == 300
    client.commit_transaction(pinged)


def test_a_commit_aborts_open_nested_transactions(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    outer = client.start_transaction()
    with client.Transaction(transaction_id=outer):
        inner = client.start_transaction()
        with client.Transaction(transaction_id=inner):
            client.set(f"{home}/inner", 1)
        client.set(f"{home}/outer", 1)
    client.commit_transaction(outer)
    assert client.list(home) == ["outer"]
    with pytest.raises(YtNoSuchTransaction):
        client.commit_transaction(inner)


def test_an_unknown_transaction_has_its_own_error(client: YtClient, home: str) -> None:
    with pytest.raises(YtNoSuchTransaction), client.Transaction(transaction_id="1-2-10001-4"):
        client.get(home)
    with pytest.raises(YtNoSuchTransaction):
        client.start_transaction(prerequisite_transaction_ids=["1-2-10001-4"])


# -- locks ------------------------------------------------------------------------------------------------------


def test_locks_of_others_prevent_changes(yt_server: YtServer, home: str) -> None:
    holder, other = yt_server.client(), yt_server.client()
    holder.set(f"{home}/m", {"a": {}, "b": {}})
    with holder.Transaction() as transaction:
        held = holder.lock(f"{home}/m")
        assert holder.get(f"#{held['lock_id']}/@state") == "acquired"
        changes: list[Callable[[], Any]] = [
            lambda: other.set(f"{home}/m/@x", 1),
            lambda: other.set(f"{home}/m/c", 1),
            lambda: other.remove(f"{home}/m", recursive=True),
            lambda: other.move(f"{home}/m", f"{home}/n"),
        ]
        for change in changes:
            with pytest.raises(YtCypressTransactionLockConflict) as conflict:
                change()
            assert str(transaction.transaction_id) in str(conflict.value)
        other.set(f"{home}/m/a/x", 1)
        with other.Transaction(), pytest.raises(YtCypressTransactionLockConflict):
            other.lock(f"{home}/m", mode="shared")
        assert other.get(f"{home}/m/@lock_count") == 1
        assert holder.get(f"{home}/m/@lock_mode") == "exclusive"
    other.remove(f"{home}/m", recursive=True)


def test_shared_locks_conflict_only_on_the_same_child(yt_server: YtServer, home: str) -> None:
    first, second = yt_server.client(), yt_server.client()
    with first.Transaction(), second.Transaction():
        first.set(f"{home}/a", 1)
        second.set(f"{home}/b", 1)
        second.set(f"{home}/@y", 1)
        with pytest.raises(YtCypressTransactionLockConflict):
            second.set(f"{home}/a", 2)
        with pytest.raises(YtCypressTransactionLockConflict):
            second.lock(home)
        first.lock(home, mode="shared", attribute_key="x")
        with pytest.raises(YtCypressTransactionLockConflict):
            second.set(f"{home}/@x", 1)
    assert first.get(home) == {"a": 1, "b": 1}


def test_a_waitable_lock_is_acquired_in_its_turn(yt_server: YtServer, home: str) -> None:
    first, second = yt_server.client(), yt_server.client()
    with first.Transaction():
        first.lock(home)
        waiting = second.start_transaction()
        with second.Transaction(transaction_id=waiting):
            pending = second.lock(home, waitable=True)["lock_id"]
        assert second.get(f"#{pending}/@state") == "pending"
    assert second.get(f"#{pending}/@state") == "acquired"
    with pytest.raises(YtCypressTransactionLockConflict):
        first.set(f"{home}/@x", 1)
    second.abort_transaction(waiting)
    first.set(f"{home}/@x", 1)


def test_locks_are_released(yt_server: YtServer, home: str) -> None:
    holder, other = yt_server.client(), yt_server.client()
    with holder.Transaction():
        holder.lock(home)
        holder.unlock(home)
        other.set(f"{home}/@x", 1)
        holder.lock(home)
        holder.set(f"{home}/@y", 1)
        with pytest.raises(YtResponseError, match="modified"):
            holder.unlock(home)
    with pytest.raises(YtResponseError, match="outside of a transaction"):
        holder.lock(home)
