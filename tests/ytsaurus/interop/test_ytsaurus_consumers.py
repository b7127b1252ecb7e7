"""Queue consumers of the endpoint, and the queue agent's attributes, with YTsaurus' client."""

from __future__ import annotations

from typing import Any

import pytest
from yt import yson
from yt.wrapper import YtClient, YtResponseError

import headrace
from tests.ytsaurus.interop.ytsaurus_server import YtServer
from tests.ytsaurus.interop.ytsaurus_tables import (
    AT_ONCE,
    DATA,
    TIMESTAMP,
    WEIGHT,
    consumer,
    fill,
    losing_transaction,
    pulled,
    queue,
)

NEVER = "1970-01-01T00:00:00.000000Z"


def code_of(error: pytest.ExceptionInfo[YtResponseError]) -> int:
    return int(error.value.error["code"])


# -- consumers ------------------------------------------------------------------------------------------------


def test_a_created_consumer_has_a_schema_and_is_mounted(client: YtClient, home: str) -> None:
    client.create("queue_consumer", f"{home}/c")
    schema = client.get(f"{home}/c/@schema")
    assert schema.attributes == {"strict": True, "unique_keys": True}
    assert [(column["name"], column["type"], column["required"]) for column in schema] == [
        ("queue_cluster", "string", True),
        ("queue_path", "string", True),
        ("partition_index", "uint64", True),
        ("offset", "uint64", True),
        ("meta", "any", False),
    ]
    assert client.get(f"{home}/c/@type") == "table"
    assert client.get(f"{home}/c/@treat_as_queue_consumer")
    assert client.get(f"{home}/c/@tablet_state") == "mounted"


def test_a_table_can_become_a_consumer_with_or_without_meta(client: YtClient, home: str) -> None:
    key = {"required": True, "sort_order": "ascending"}
    schema = [
        {"name": "queue_cluster", "type": "string", **key},
        {"name": "queue_path", "type": "string", **key},
        {"name": "partition_index", "type": "uint64", **key},
        {"name": "offset", "type": "uint64", "required": True},
    ]
    path = f"{home}/c"
    client.create("table", path, attributes={"dynamic": True, "treat_as_queue_consumer": True, "schema": schema})
    client.mount_table(path, sync=True)
    client.advance_queue_consumer(path, f"{home}/nothing", 0, 0, 3)
    (row,) = client.select_rows(f"* from [{path}]")
    assert row == {"queue_cluster": "primary", "queue_path": f"{home}/nothing", "partition_index": 0, "offset": 3}
    client.create("table", f"{home}/later", attributes={"dynamic": True, "schema": schema})
    client.set(f"{home}/later/@treat_as_queue_consumer", True)
    client.mount_table(f"{home}/later", sync=True)
    client.register_queue_consumer(queue(client, f"{home}/q"), f"{home}/later", vital=True)
    assert client.get(f"{home}/q/@queue_status/registrations/0/consumer") == f"primary:{home}/later"
    with pytest.raises(YtResponseError, match="schema of a queue consumer"):
        client.create(
            "table",
            f"{home}/d",
            attributes={"dynamic": True, "treat_as_queue_consumer": True, "schema": [*schema[:2], DATA]},
        )


def test_a_table_with_the_columns_of_a_consumer_can_be_used_as_one(client: YtClient, home: str) -> None:
    schema = client.get(f"{consumer(client, f'{home}/like')}/@schema")
    client.create("table", f"{home}/c", attributes={"dynamic": True, "schema": schema})
    path = queue(client, f"{home}/q")
    fill(client, path, 1)
    client.register_queue_consumer(path, f"{home}/c", vital=False)
    client.mount_table(f"{home}/c", sync=True)
    client.advance_queue_consumer(f"{home}/c", path, 0, 0, 1)
    assert list(client.pull_queue_consumer(f"{home}/c", path, None, 0)) == []
    assert not client.exists(f"{home}/c/@treat_as_queue_consumer")


def test_named_consumers_are_refused(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = f"<queue_consumer_name=one>{consumer(client, f'{home}/c', path)}"
    for call in (
        lambda: client.register_queue_consumer(path, reader, vital=False),
        lambda: list(client.pull_queue_consumer(reader, path, 0, 0)),
        lambda: client.advance_queue_consumer(reader, path, 0, 0, 1),
    ):
        with pytest.raises(YtResponseError, match="Queue consumer name is not supported"):
            call()


def test_an_update_of_a_consumer_keeps_other_columns(client: YtClient, home: str) -> None:
    reader = consumer(client, f"{home}/c")
    key = {"queue_cluster": "primary", "queue_path": queue(client, f"{home}/q"), "partition_index": 0}
    with pytest.raises(YtResponseError, match="'offset' cannot have a null value"):
        client.insert_rows(reader, [{**key, "meta": "mine"}], update=True)
    client.insert_rows(reader, [{**key, "offset": 3, "meta": "mine"}])
    client.insert_rows(reader, [{**key, "offset": 4}], update=True)
    client.insert_rows(reader, [{**key, "partition_index": 9, "offset": 1}], update=True)
    rows = client.select_rows(f"* from [{reader}]")
    assert [(row["offset"], row["meta"]) for row in rows] == [(4, "mine"), (1, None)]
    client.insert_rows(reader, [{**key, "meta": "yours"}], update=True)
    client.insert_rows(reader, [{**key, "partition_index": 9, "offset": 1}])
    assert [(row["offset"], row["meta"]) for row in client.lookup_rows(reader, [key])] == [(4, "yours")]


def test_the_column_meta_can_be_added_to_a_consumer(client: YtClient, home: str) -> None:
    reader, like = f"{home}/c", consumer(client, f"{home}/like")
    *schema, meta = client.get(f"{like}/@schema")
    client.create("queue_consumer", reader, attributes={"schema": schema})
    key = {"queue_cluster": "primary", "queue_path": "//tmp/q", "partition_index": 0}
    client.insert_rows(reader, [{**key, "offset": 1}])
    client.unmount_table(reader, sync=True)
    with pytest.raises(YtResponseError, match="schema of a queue consumer"):
        client.alter_table(reader, schema=[*schema, DATA])
    client.alter_table(reader, schema=[*schema, meta])
    client.mount_table(reader, sync=True)
    client.insert_rows(reader, [{**key, "meta": "mine"}], update=True)
    assert list(client.select_rows(f"* from [{reader}]")) == [{**key, "offset": 1, "meta": "mine"}]


def test_registrations_are_listed_by_queue_and_by_consumer(client: YtClient, home: str) -> None:
    first, second = queue(client, f"{home}/q1"), queue(client, f"{home}/q2")
    reader = consumer(client, f"{home}/c", first, vital=True)
    client.link(second, f"{home}/link")
    client.register_queue_consumer(f"{home}/link", reader, vital=False, partitions=[0])

    def listed(**of: str) -> list[tuple[str, str, bool, Any]]:
        found = client.list_queue_consumer_registrations(**of)
        return [(str(e["queue_path"]), str(e["consumer_path"]), e["vital"], e["partitions"]) for e in found]

    everything = [(first, reader, True, None), (second, reader, False, [0])]
    assert listed(consumer_path=reader) == everything
    assert listed(queue_path=f"{home}/link") == everything[1:]
    assert listed(queue_path=f"{home}/nothing") == []
    (found,) = client.list_queue_consumer_registrations(queue_path=first)
    assert found["queue_path"].attributes == {"cluster": "primary"}
    table = "//sys/queue_agents/consumer_registrations"
    rows = client.select_rows(f"queue_path, consumer_path, vital from [{table}] where consumer_path = '{reader}'")
    assert list(rows) == [
        {"queue_path": first, "consumer_path": reader, "vital": True},
        {"queue_path": second, "consumer_path": reader, "vital": False},
    ]
    client.unregister_queue_consumer(first, reader)
    client.unregister_queue_consumer(f"{home}/never", reader)
    assert listed(consumer_path=reader) == everything[1:]


def test_queue_and_consumer_of_a_registration_must_exist(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    for ends in ((path, f"{home}/none"), (f"{home}/none", path)):
        with pytest.raises(YtResponseError, match="has no child with key"):
            client.register_queue_consumer(*ends, vital=False)


def test_a_registration_stays_with_the_paths_it_names(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c", path, vital=True)
    client.register_queue_consumer(f"elsewhere:{home}/q", reader, vital=False, partitions=[1])
    client.remove(path)

    def listed() -> list[tuple[str, bool, Any]]:
        found = client.list_queue_consumer_registrations(consumer_path=reader)
        return [(e["queue_path"].attributes["cluster"], e["vital"], e["partitions"]) for e in found]

    assert listed() == [("elsewhere", False, [1]), ("primary", True, None)]
    with pytest.raises(YtResponseError, match='Queue cluster "elsewhere" was not found for path'):
        list(client.pull_queue_consumer(reader, f"elsewhere:{home}/q", 0, 1))
    fill(client, queue(client, path), 2)
    assert len(list(client.pull_queue_consumer(reader, path, None, 0))) == 2
    assert client.get(f"{path}/@queue_status/registrations/0/vital")


def test_a_consumer_reads_only_registered_queues(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c")
    with pytest.raises(YtResponseError, match="is not registered for queue") as error:
        list(client.pull_queue_consumer(reader, path, 0, 0))
    assert code_of(error) == 901
    assert {"raw_queue", "raw_consumer"} <= set(error.value.error["attributes"])
    client.register_queue_consumer(path, reader, vital=False)
    with pytest.raises(YtResponseError, match="Invalid tablet index"):
        list(client.pull_queue_consumer(reader, path, 0, 5))


def test_a_consumer_reads_from_its_offset_by_default(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c", path)
    fill(client, path, 4)

    def indexes(offset: int | None) -> list[int]:
        return [row["$row_index"] for row in client.pull_queue_consumer(reader, path, offset, 0)]

    assert indexes(None) == [0, 1, 2, 3]
    client.advance_queue_consumer(reader, path, 0, 0, 3)
    assert indexes(None) == [3]
    assert indexes(1) == [1, 2, 3]


def test_advancing_with_a_wrong_old_offset_is_a_conflict(client: YtClient, home: str) -> None:
    reader, path = consumer(client, f"{home}/c"), f"{home}/nothing"
    client.advance_queue_consumer(reader, path, 2, 0, 3)
    with pytest.raises(YtResponseError, match="Offset conflict at partition 2 of consumer") as error:
        client.advance_queue_consumer(reader, path, 2, 1, 5)
    assert code_of(error) == 3100
    told = error.value.error["attributes"]
    assert (told["partition"], told["expected_offset"], told["current_offset"]) == (2, 1, 3)
    assert "expected offset 1, found offset 3" in error.value.error["message"]


def test_advancing_without_an_old_offset_sets_any_offset(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c")
    for offset in (100, 3, 2**64 - 1, 0):
        client.advance_queue_consumer(reader, path, 0, None, offset)
        (row,) = client.select_rows(f"[offset] from [{reader}]")
        assert row["offset"] == offset


@pytest.mark.parametrize(("offset", "weight"), [(3, 60), (5, 100), (6, 120), (7, None), (0, None)])
def test_server_side_advancing_saves_the_data_weight(
    client: YtClient, home: str, offset: int, weight: int | None
) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT)
    reader = consumer(client, f"{home}/c", path)
    fill(client, path, 6)
    client.advance_queue_consumer(reader, path, 0, None, offset, client_side=False)
    (row,) = client.select_rows(f"* from [{reader}]")
    assert row["offset"] == offset
    if weight is None:
        assert row["meta"] is None
        return
    assert row["meta"]["cumulative_data_weight"] == weight
    rows = pulled(client, path, offset)
    assert row["meta"].get("offset_timestamp") == (rows[0]["$timestamp"] if rows else None)


def test_server_side_advancing_needs_the_queue(client: YtClient, home: str) -> None:
    reader = consumer(client, f"{home}/c")
    with pytest.raises(YtResponseError, match="Failed to resolve queue path"):
        client.advance_queue_consumer(reader, f"{home}/nothing", 0, 0, 3, client_side=False)


def test_advances_in_a_transaction_are_visible_after_the_commit(client: YtClient, home: str) -> None:
    reader = consumer(client, f"{home}/c")
    queues = [queue(client, f"{home}/q1"), f"{home}/q2"]
    with client.Transaction(type="tablet"):
        for path in queues:
            client.advance_queue_consumer(reader, path, 0, 0, 1543)
        assert list(client.select_rows(f"* from [{reader}]")) == []
    rows = client.select_rows(f"queue_path, [offset] from [{reader}]")
    assert {row["queue_path"]: row["offset"] for row in rows} == dict.fromkeys(queues, 1543)


def test_the_first_to_commit_an_advance_wins(client: YtClient, yt_server: YtServer, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c", path)
    other = yt_server.client(**AT_ONCE)
    with losing_transaction(client):
        client.advance_queue_consumer(reader, path, 0, 0, 3)
        with other.Transaction(type="tablet"):
            other.advance_queue_consumer(reader, path, 0, 0, 3)
    assert [row["offset"] for row in client.select_rows(f"[offset] from [{reader}]")] == [3]


def test_an_advance_by_another_process_is_a_conflict(client: YtClient, yt_server: YtServer, home: str) -> None:
    path = queue(client, f"{home}/q")
    reader = consumer(client, f"{home}/c", path)
    with losing_transaction(client):
        client.advance_queue_consumer(reader, path, 0, 0, 3)
        with headrace.open(str(yt_server.root)) as store:
            store.consumer(reader).advance(path, {0: 1})


def test_rows_of_a_consumer_can_name_any_queue(client: YtClient, home: str) -> None:
    reader = consumer(client, f"{home}/c")
    path = f"{home}/q"
    rows = [
        {"queue_cluster": "primary", "queue_path": path, "partition_index": 0, "offset": 1},
        {"queue_cluster": "elsewhere", "queue_path": path, "partition_index": 0, "offset": 2},
        {"queue_cluster": "primary", "queue_path": path, "partition_index": yson.YsonUint64(2**64 - 1), "offset": 3},
    ]
    client.insert_rows(reader, rows)
    queue(client, path)
    client.register_queue_consumer(path, reader, vital=False)
    fill(client, path, 2)
    # Rows of a consumer from before the creation of the queue apply to it.
    assert len(list(client.pull_queue_consumer(reader, path, None, 0))) == 1
    found = list(client.lookup_rows(reader, [{k: v for k, v in row.items() if k != "offset"} for row in rows]))
    assert [row["offset"] for row in found] == [1, 2, 3]
    (partition,) = client.get(f"{reader}/@queue_consumer_partitions")[f"primary:{path}"]
    assert partition["next_row_index"] == 1
    client.delete_rows(reader, [{key: rows[0][key] for key in ("queue_cluster", "queue_path", "partition_index")}])
    client.remove(path)
    assert sorted(row["offset"] for row in client.select_rows(f"[offset] from [{reader}]")) == [2, 3]


# -- the queue agent ------------------------------------------------------------------------------------------


def test_a_queue_has_a_status(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, tablets=2)
    reader = consumer(client, f"{home}/c", path, vital=True)
    status = client.get(f"{path}/@queue_status")
    assert status["family"] == "ordered_dynamic_table"
    assert status["partition_count"] == 2
    assert status["registrations"] == [{"queue": f"primary:{path}", "consumer": f"primary:{reader}", "vital": True}]
    assert status["has_timestamp_column"]
    assert not status["has_cumulative_data_weight_column"]
    assert set(status["write_row_count_rate"]) == {"current", "1m_raw", "1m", "1h", "1d"}
    first, second = client.get(f"{path}/@queue_partitions")
    assert first["last_row_commit_time"] == second["last_row_commit_time"] == NEVER
    assert first["cumulative_data_weight"] == None  # noqa: E711
    client.insert_rows(path, [{"data": "x", "$tablet_index": 1}])
    assert client.get(f"{path}/@queue_partitions/1/last_row_commit_time") > NEVER
    assert client.get(f"{path}/@queue_partitions/1/upper_row_index") == 1
    client.set(f"{path}/@queue_agent_banned", True)
    assert client.get(f"{path}/@queue_status/error/message") == "Queue is banned"


def test_the_disposition_of_a_consumer_follows_from_its_offset(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT)
    reader = consumer(client, f"{home}/c", path)
    fill(client, path, 3)
    client.trim_rows(path, 0, 1)
    dispositions = ["expired", "pending_consumption", "pending_consumption", "up_to_date", "ahead"]
    for offset, disposition in enumerate(dispositions):
        client.advance_queue_consumer(reader, path, 0, None, offset)
        ((partition,),) = client.get(f"{reader}/@queue_consumer_partitions").values()
        assert partition["disposition"] == disposition
        assert partition["unread_row_count"] == 3 - offset
        assert partition["next_row_index"] == offset
        assert (partition["processing_lag"] > 0) == (offset < 3)
        assert (partition["next_row_commit_time"] == None) == (offset >= 3)  # noqa: E711
    client.advance_queue_consumer(reader, path, 0, None, 2)
    assert client.get(f"{reader}/@queue_consumer_partitions")[f"primary:{path}"][0]["unread_data_weight"] == 20
    client.advance_queue_consumer(reader, path, 0, None, 0)
    assert client.get(f"{reader}/@queue_consumer_partitions")[f"primary:{path}"][0]["unread_data_weight"] == None  # noqa: E711
    status = client.get(f"{reader}/@queue_consumer_status")
    assert status["queues"][f"primary:{path}"]["partition_count"] == 1


def test_the_status_of_a_consumer_shows_unreadable_queues(client: YtClient, home: str) -> None:
    here, gone = queue(client, f"{home}/here"), queue(client, f"{home}/gone")
    reader = consumer(client, f"{home}/c", here, gone, f"other:{here}")
    client.remove(gone)

    def errors() -> dict[str, bool]:
        return {
            name: "error" in status for name, status in client.get(f"{reader}/@queue_consumer_status/queues").items()
        }

    assert errors() == {f"primary:{here}": False, f"primary:{gone}": True, f"other:{here}": True}
    assert len(client.get(f"{reader}/@queue_consumer_status/registrations")) == 3
    partitions = client.get(f"{reader}/@queue_consumer_partitions")
    assert {name: len(found) for name, found in partitions.items()} == {
        f"primary:{here}": 1,
        f"primary:{gone}": 0,
        f"other:{here}": 0,
    }
    client.unmount_table(reader, sync=True)
    assert all(errors().values())
    client.remove(reader)
    assert client.get(f"{here}/@queue_status/registrations/0/consumer") == f"primary:{reader}"
