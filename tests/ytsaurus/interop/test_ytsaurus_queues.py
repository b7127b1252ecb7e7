"""Queues of the endpoint behave as in YTsaurus' tests, with YTsaurus' client."""

from __future__ import annotations

import pytest
from yt.wrapper import YtClient, YtResponseError
from yt.wrapper.errors import YtTabletNotMounted

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

# -- tables without keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "data", "weights"),
    [
        ((WEIGHT,), "foo", [12, 24]),
        ((TIMESTAMP, WEIGHT), "foo", [20, 40]),
        ((TIMESTAMP, WEIGHT), "foobar", [23, 46]),
    ],
)
def test_data_weights_equal_those_of_a_cluster(
    client: YtClient, home: str, columns: tuple[dict[str, str], ...], data: str, weights: list[int]
) -> None:
    fill(client, queue(client, f"{home}/q", *columns), 2, data)
    assert [row["$cumulative_data_weight"] for row in pulled(client, f"{home}/q", 0)] == weights


def test_weights_add_up_over_the_rows_of_a_tablet(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT)
    for data in ("foo", "foo", "foobar"):
        fill(client, path, 1, data)
    assert [row["$cumulative_data_weight"] for row in client.select_rows(f"* from [{path}]")] == [20, 40, 63]


def test_rows_of_a_transaction_have_one_timestamp(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP)
    fill(client, path, 2)
    fill(client, path, 1)
    first, second, third = (row["$timestamp"] for row in pulled(client, path, 0))
    assert first == second < third
    assert abs((first >> 30) - (client.generate_timestamp() >> 30)) < 60


def test_rows_are_numbered_in_order_in_their_tablets(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=3)
    client.insert_rows(path, [{"data": str(number), "$tablet_index": number % 2} for number in range(6)])
    client.insert_rows(path, [{"data": "last", "$tablet_index": 1}])
    rows = [(row["$tablet_index"], row["$row_index"], row["data"]) for row in client.select_rows(f"* from [{path}]")]
    assert rows == [(0, 0, "0"), (0, 1, "2"), (0, 2, "4"), (1, 0, "1"), (1, 1, "3"), (1, 2, "5"), (1, 3, "last")]
    client.insert_rows(path, [{"data": "anywhere"}])
    assert [row["data"] for row in pulled(client, path, 0, 2)] == ["anywhere"]


def test_system_columns_and_unknown_ones_cannot_be_written(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP)
    for field in ("$timestamp", "$row_index", "nonsense"):
        with pytest.raises(YtResponseError, match=field.replace("$", r"\$")):
            client.insert_rows(path, [{"data": "x", field: 1}])
    with pytest.raises(YtResponseError, match="Invalid tablet index"):
        client.insert_rows(path, [{"data": "x", "$tablet_index": 7}])
    assert pulled(client, path, 0) == []


def test_trimming_keeps_row_numbers_and_cannot_be_undone(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT)
    fill(client, path, 5)
    client.trim_rows(path, 0, 3)
    client.trim_rows(path, 0, 1)
    assert [row["$row_index"] for row in pulled(client, path, 0)] == [3, 4]
    assert [row["$row_index"] for row in client.select_rows(f"[$row_index] from [{path}] where [$row_index] > 3")] == [
        4
    ]
    (info,) = client.get_tablet_infos(path, [0])["tablets"]
    assert (info["total_row_count"], info["trimmed_row_count"]) == (5, 3)
    (partition,) = client.get(f"{path}/@queue_partitions")
    assert (partition["lower_row_index"], partition["upper_row_index"]) == (3, 5)
    assert partition["available_row_count"] == 2
    assert (partition["cumulative_data_weight"], partition["trimmed_data_weight"]) == (100, 60)
    assert partition["available_data_weight"] == 40
    assert client.get(f"{path}/@tablets/0/trimmed_row_count") == 3


def test_resharding_adds_empty_tablets_with_given_starts(client: YtClient, home: str) -> None:
    path = f"{home}/q"
    client.create("table", path, attributes={"dynamic": True, "schema": [DATA]})
    client.reshard_table(path, tablet_count=2, trimmed_row_counts=[10, 20], sync=True)
    client.reshard_table(
        path, tablet_count=3, first_tablet_index=1, last_tablet_index=1, trimmed_row_counts=[30, 40], sync=True
    )
    client.mount_table(path, sync=True)
    infos = client.get_tablet_infos(path, [0, 1, 2, 3])["tablets"]
    assert [info["trimmed_row_count"] for info in infos] == [10, 20, 30, 40]
    client.insert_rows(path, [{"data": "x", "$tablet_index": 2}])
    assert [row["$row_index"] for row in pulled(client, path, 0, 2)] == [30]


def test_tablets_of_a_new_queue_have_given_starts(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", WEIGHT, tablets=2, trimmed_row_counts=[10, 20], cumulative_data_weights=[5, 0])
    assert [tablet["trimmed_row_count"] for tablet in client.get(f"{path}/@tablets")] == [10, 20]
    fill(client, path, 1, tablet=0)
    (row,) = pulled(client, path, 0)
    assert (row["$row_index"], row["$cumulative_data_weight"]) == (10, 17)
    assert not client.exists(f"{path}/@trimmed_row_counts")
    for wrong in ([1], [1, -1], "many"):
        with pytest.raises(YtResponseError, match="trimmed_row_counts"):
            queue(client, f"{home}/wrong", tablets=2, trimmed_row_counts=wrong)


def test_columns_are_added_to_an_unmounted_queue(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, tablets=2)
    reader = consumer(client, f"{home}/c", path)
    # With this number of rows, small chunks are merged, and a part of a chunk is trimmed.
    for number in range(70):
        client.insert_rows(path, [{"data": str(number), "$tablet_index": 0}])
    client.insert_rows(path, [{"data": "x" * 40_000, "$tablet_index": 1}])
    client.trim_rows(path, 0, 3)
    client.advance_queue_consumer(reader, path, 0, 0, 60)
    before = pulled(client, path, 0)
    more = [{"name": "more", "type": "int64"}, WEIGHT]
    with pytest.raises(YtResponseError, match="mounted"):
        client.alter_table(path, schema=[DATA, TIMESTAMP, *more])
    client.unmount_table(path, sync=True)
    client.alter_table(path, schema=[DATA, TIMESTAMP, *more])
    client.mount_table(path, sync=True)
    after = pulled(client, path, 0)
    assert [row["more"] for row in after] == [None] * 67
    weights = [row["$cumulative_data_weight"] for row in after]
    assert weights == sorted(weights)
    for row in after:
        del row["more"], row["$cumulative_data_weight"]
    assert after == before
    client.insert_rows(path, [{"data": "new", "more": 5, "$tablet_index": 0}])
    *_, last = client.pull_queue_consumer(reader, path, None, 0)
    assert (last["$row_index"], last["more"], last["$cumulative_data_weight"]) == (70, 5, weights[-1] + 3 + 1 + 8 + 16)
    assert len(pulled(client, path, 0, 1)) == 1


def test_rows_can_be_written_as_text_yson(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q")
    client.insert_rows(path, [{"data": "a"}, {"data": None}])
    text = client.pull_queue(path, offset=0, partition_index=0, format="<format=text>yson", raw=True).read()
    assert text.splitlines() == [
        b'{"$tablet_index"=0;"$row_index"=0;"data"="a";};',
        b'{"$tablet_index"=0;"$row_index"=1;"data"=#;};',
    ]


def test_mounted_tables_and_tablets_with_rows_are_not_resharded(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=2)
    client.insert_rows(path, [{"data": "x", "$tablet_index": 1}])
    with pytest.raises(YtResponseError, match="is in state 'mounted'"):
        client.reshard_table(path, tablet_count=3)
    client.unmount_table(path, sync=True)
    with pytest.raises(YtResponseError, match="cannot be removed"):
        client.reshard_table(path, tablet_count=1)
    client.reshard_table(path, tablet_count=3, sync=True)
    client.mount_table(path, sync=True)
    assert [row["data"] for row in client.select_rows(f"data from [{path}]")] == ["x"]
    assert client.get(f"{path}/@tablet_count") == 3


def test_a_table_is_unmounted_until_it_is_mounted(client: YtClient, home: str) -> None:
    path = f"{home}/q"
    client.create("table", path, attributes={"dynamic": True, "schema": [DATA]})
    assert client.get(f"{path}/@tablet_state") == "unmounted"
    with pytest.raises(YtTabletNotMounted):
        fill(client, path, 1)
    with losing_transaction(client, YtTabletNotMounted):
        fill(client, path, 1)
        buffered = True
    assert buffered
    client.mount_table(path, sync=True)
    assert client.get(f"{path}/@tablets/0/state") == "mounted"
    fill(client, path, 1)
    client.freeze_table(path, sync=True)
    assert len(pulled(client, path, 0)) == 1
    with pytest.raises(YtTabletNotMounted):
        fill(client, path, 1)
    client.unmount_table(path, sync=True)
    with pytest.raises(YtTabletNotMounted):
        pulled(client, path, 0)
    assert client.get(f"{path}/@queue_partitions/0/error/message").endswith("is not mounted or frozen")


def test_a_copied_queue_keeps_the_addresses_of_rows(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT, tablets=2)
    for partition in (0, 1, 1):
        fill(client, path, 2, tablet=partition)
    client.trim_rows(path, 1, 1)
    with pytest.raises(YtResponseError, match="mounted"):
        client.copy(path, f"{home}/copy")
    client.freeze_table(path, sync=True)
    client.copy(path, f"{home}/copy")
    client.mount_table(f"{home}/copy", sync=True)
    assert list(client.select_rows(f"* from [{home}/copy]")) == list(client.select_rows(f"* from [{path}]"))
    fill(client, f"{home}/copy", 1, tablet=1)
    assert [row["$row_index"] for row in pulled(client, f"{home}/copy", 0, 1)] == [1, 2, 3, 4]


# -- pulling --------------------------------------------------------------------------------------------------


def test_pulling_returns_rows_up_to_a_number_or_a_weight(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, WEIGHT)
    for _ in range(3):
        fill(client, path, 2)
    assert [row["$row_index"] for row in pulled(client, path, 1, max_row_count=3)] == [1, 2, 3]
    assert len(pulled(client, path, 0, max_data_weight=5)) == 1
    assert len(pulled(client, path, 0, max_data_weight=40)) == 2
    assert pulled(client, path, 6) == pulled(client, path, 2**40 + 5) == []
    assert list(pulled(client, path, 5)[0])[:2] == ["$tablet_index", "$row_index"]


def test_rows_are_pushed_and_pulled_in_json(yt_server: YtServer, client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP, tablets=2)
    plain = yt_server.client(**AT_ONCE, tabular_data_format="json", structured_data_format="json")
    # JSON doubles the dollar in a name, and the client does not undo it.
    plain.insert_rows(path, [{"data": "bаr", "$$tablet_index": 1}])
    (row,) = plain.pull_queue(path, offset=0, partition_index=1)
    assert (row["data"], row["$$tablet_index"], row["$$row_index"]) == ("bаr", 1, 0)
    assert row["$$timestamp"] == pulled(client, path, 0, 1)[0]["$timestamp"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partition_index": 9}, "Invalid tablet index for table"),
        ({"partition_index": -1}, "Invalid tablet index for table"),
        ({"max_row_count": 0}, "is non-positive"),
        ({"max_data_weight": -1}, "is non-positive"),
        ({"offset": -1}, "offset"),
    ],
)
def test_a_wrong_pull_is_an_error(client: YtClient, home: str, arguments: dict[str, int], message: str) -> None:
    path = queue(client, f"{home}/q")
    with pytest.raises(YtResponseError, match=message):
        list(client.pull_queue(path, **{"offset": 0, "partition_index": 0, **arguments}))


def test_only_ordered_dynamic_tables_can_be_pulled(client: YtClient, home: str) -> None:
    client.create("table", f"{home}/static")
    keyed = [{"name": "k", "type": "int64", "sort_order": "ascending"}, DATA]
    client.create("table", f"{home}/sorted", attributes={"dynamic": True, "schema": keyed})
    for name, message in (("static", "not dynamic"), ("sorted", "not a queue")):
        with pytest.raises(YtResponseError, match=message):
            pulled(client, f"{home}/{name}", 0)


def test_queues_and_consumers_are_objects_of_the_embedded_store(
    client: YtClient, yt_server: YtServer, home: str
) -> None:
    path = queue(client, f"{home}/q", TIMESTAMP)
    reader = consumer(client, f"{home}/c", path)
    fill(client, path, 3)
    client.advance_queue_consumer(reader, path, 0, 0, 2)
    with headrace.open(str(yt_server.root)) as store:
        assert store.queue(path).read(0, 0).rows.column("data").to_pylist() == [b"foo"] * 3
        assert store.consumer(reader).offsets(path) == {0: 2}
        store.queue(path).append({"data": b"from beside"})
        store.consumer(reader).advance(path, {0: 3})
    assert [row["data"] for row in client.pull_queue_consumer(reader, path, None, 0)] == ["from beside"]
