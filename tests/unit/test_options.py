"""Options of the formats: their values, their checks, and no secrets in messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_positions import RowStart, check_positions
from headrace.errors import NotFoundError, OptionError
from headrace.formats.headrace.source import HEADRACE
from headrace.formats.location import Location
from headrace.formats.option_checks import check_options
from headrace.formats.registry import source_of
from headrace.model.tunnels.values import Start, StartKind
from headrace.options.kinds import names
from headrace.options.settings import Settings
from headrace.stores.registry import StoreAddress
from headrace.stores.registry import open as open_store
from headrace_tablestore.format.source import TABLESTORE
from headrace_ytsaurus.format.source import YT

ORDERS = {"endpoint": "/data", "instance.name": "vehicle-test", "table.name": "OrderSource"}


def headrace(**options: str) -> Settings:
    return HEADRACE.settings(options)


def test_only_a_tunnel_can_start_after_a_batch() -> None:
    start = TABLESTORE.settings({"startingPosition": " Batch:3f-A "}).get("startingPosition")
    assert start == Start(StartKind.BATCH, batch="3f-A")
    with pytest.raises(OptionError, match="tunnel"):
        check_positions(headrace(startingPosition="batch:3f").get("startingPosition"), ["clicks"])
    with pytest.raises(OptionError):
        Start.parse("batch:")


def test_names_of_options_have_no_case() -> None:
    assert headrace(MAXROWSPERTRIGGER="5").get("maxRowsPerTrigger") == 5


def test_limits_have_units() -> None:
    given = {
        "maxRowsPerChannel": "10",
        "maxRowsPerTrigger": "20",
        "maxBytesPerTrigger": "64m",
        "minRowsPerTrigger": "3",
        "maxTriggerDelay": "2m",
    }
    assert source_of("headrace", given).limits() == Limits(10, 20, 64 << 20, 3, 120.0)
    assert source_of("headrace", {}).limits() == Limits()


def test_the_connectors_limits_have_the_connectors_defaults() -> None:
    assert source_of("tablestore", ORDERS).limits().rows_per_channel == 10_000
    assert source_of("tablestore", {"maxoffsetsperchannel": "-1"}).limits().rows_per_channel is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRowsPerTrigger", "many"),
        ("maxRowsPerTrigger", "0"),
        ("failOnDataLoss", "maybe"),
        ("maxTriggerDelay", "soon"),
        ("maxBytesPerTrigger", "0"),
        ("startingPosition", "somewhere"),
        ("startingPosition", '{"0": -5}'),
        ("endingPosition", "{}"),
        ("minPartitions", "0"),
        ("queues", "a,,b"),
        ("rowChange", "append"),
    ],
)
def test_the_error_for_a_bad_value_shows_the_value_and_the_valid_ones(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        headrace(**{name: value}).get(name)
    assert value in str(caught.value)
    assert "valid:" in str(caught.value)


def test_the_error_for_a_misspelled_name_suggests_an_option() -> None:
    with pytest.raises(OptionError, match="did you mean maxRowsPerTrigger"):
        check_options(HEADRACE, ["maxRowPerTriger"])


def test_repr_shows_no_values() -> None:
    settings = TABLESTORE.settings(ORDERS | {"access.key.secret": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert "access.key.secret" in repr(settings)


@pytest.mark.parametrize("endpoint", ["/data", "file:///data", "file:/data"])
def test_a_directory_as_endpoint_is_an_embedded_store_in_the_instances_sub_directory(endpoint: str) -> None:
    assert TABLESTORE.locate(ORDERS | {"endpoint": endpoint}) == Location(
        StoreAddress("/data/vehicle-test"), "OrderSource"
    )


def test_missing_options_are_reported_in_the_connectors_order() -> None:
    for name in ("table.name", "instance.name", "endpoint"):
        with pytest.raises(OptionError, match=f"option {name} is missing"):
            TABLESTORE.locate({key: value for key, value in ORDERS.items() if key != name})
    with pytest.raises(OptionError, match=r"access\.key\.id"):
        TABLESTORE.locate(ORDERS | {"endpoint": "http://example.com"})


INSTANCE = ORDERS | {"endpoint": "https://shop.example.com/", "access.key.id": "LTAI", "access.key.secret": "hunter2"}


def test_an_http_endpoint_is_an_instance_and_the_url_has_no_access_key() -> None:
    location = TABLESTORE.locate(INSTANCE | {"region": "cn-hangzhou", "checkpoint.table": "meta"})
    assert location.store.url == "tablestore+https://shop.example.com/vehicle-test"
    assert "hunter2" not in repr(location)
    assert location.store.options.items() >= {
        "access_key_id": "LTAI", "access_key_secret": "hunter2", "region": "cn-hangzhou", "meta_table": "meta",
    }.items()  # fmt: skip
    ours = {"store": location.store.url, "table": "t", "accessKeyId": "LTAI", "accessKeySecret": "hunter2"}
    assert HEADRACE.locate(ours).store.options["access_key_secret"] == "hunter2"


def test_the_environments_access_key_is_added_to_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_ID", "LTAI")
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_SECRET", "hunter2")
    without = {name: value for name, value in INSTANCE.items() if not name.startswith("access")}
    assert TABLESTORE.with_environment(without)["access.key.secret"] == "hunter2"
    store = {"store": "tablestore+http://127.0.0.1:1/shop"}
    assert HEADRACE.with_environment(store)["accesskeysecret"] == "hunter2"
    # A key id without a secret is an error of the user, and a directory needs no key.
    assert "access.key.secret" not in TABLESTORE.with_environment(without | {"access.key.id": "other"})
    assert HEADRACE.with_environment({"store": "/data"}) == {"store": "/data"}


def test_options_of_both_versions_of_the_connectors_writer_apply() -> None:
    def writing(**given: str) -> dict[str, Any]:
        named = {name.replace("__", "-").replace("_", "."): value for name, value in given.items()}
        return dict(TABLESTORE.locate(INSTANCE | named).store.options)

    assert (writing()["rows_per_request"], writing()["bytes_per_request"]) == (200, 4 << 20)
    assert writing(batch_update_size="50", writer_max_batch_count="1000")["rows_per_request"] == 50
    assert writing(writer_max_batch_size_byte=str(64 << 20), writer_concurrency="3")["requests_in_flight"] == 3
    by_time = writing(client_retry_time_s="5", client_retry_count="9", client_retry_pause_ms="200")
    assert (by_time["retry_seconds"], by_time["retry_pause"], "retry_count" in by_time) == (5, 0.2, False)
    by_count = writing(client_retry_strategy="count", client_retry_count="9", client_retry_time_s="5")
    assert (by_count["retry_count"], "retry_seconds" in by_count) == (9, False)
    assert writing(spark_ignore_on__failure_enabled="true")["ignore_failed_rows"] is True
    for name in ("version", "writer.bucket.num", "writer.batch.request.type"):
        TABLESTORE.locate(INSTANCE | {name: "v2"})


@pytest.mark.parametrize("instance", ["..", "a/b", "."])
def test_an_instance_is_below_the_endpoint(instance: str) -> None:
    with pytest.raises(OptionError, match=r"instance\.name"):
        TABLESTORE.locate(ORDERS | {"instance.name": instance})


def test_start_positions_are_parsed() -> None:
    assert headrace().get("startingPosition") == Start()
    assert headrace(startingPosition="LATEST").get("startingPosition").kind is StartKind.LATEST
    timestamp = headrace(startingPosition="2026-01-31T12:00:00").get("startingPosition").timestamp
    assert timestamp.isoformat() == "2026-01-31T12:00:00+00:00"


def test_row_indexes_as_start_position() -> None:
    assert headrace(startingPosition='{"q": {"0": 5}}').get("startingPosition") == RowStart({"q": {0: 5}})
    assert headrace(startingPosition='{"0": 5}').get("startingPosition") == RowStart({None: {0: 5}})


def test_each_format_has_its_own_name_for_the_limit_of_a_partition() -> None:
    assert source_of("headrace", {"maxRowsPerPartition": "7"}).limits().rows_per_channel == 7
    assert source_of("yt", {"max_rows_per_partition": "1000"}).limits().rows_per_channel == 1000
    assert source_of("yt", {}).limits() == Limits()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("//tmp/q", "//tmp/q"),
        ("<append=%true>//tmp/q", "//tmp/q"),
        ('<a="x>\\"y"; b=1> <c=2>//tmp/q', "//tmp/q"),
        ('<a="columns=1">//tmp/q', "//tmp/q"),
        (r"//tmp/q\[1\]", r"//tmp/q\[1\]"),
        ("plain name", "plain name"),
    ],
)
def test_attributes_before_a_path_are_ignored(given: str, path: str) -> None:
    assert YT.locate({"store": "/data", "path": given}).table == path
    assert YT.settings({"consumer_path": given}).get("consumer_path") == path


@pytest.mark.parametrize(
    "path",
    [
        "//tmp/q[#0:#5]",
        "//tmp/q{data}",
        "<ranges=[{lower_limit={row_index=0}}]>//tmp/q",
        '<append=%true; "columns"=[a]>//tmp/q',
        "<a=1> <columns=[a]>//tmp/q",
    ],
)
def test_a_path_with_a_selection_of_columns_or_rows_is_an_error(path: str) -> None:
    with pytest.raises(OptionError, match="whole table or queue"):
        YT.locate({"store": "/data", "path": path})


@pytest.mark.parametrize(
    ("proxy", "url"),
    [
        ("/data", "/data"),
        ("file:///data", "file:///data"),
        ("./data", "./data"),
        ("hume.yt.example.net", "yt://hume.yt.example.net"),
        ("yt://hume", "yt://hume"),
    ],
)
def test_a_proxy_is_a_directory_or_a_cluster(proxy: str, url: str) -> None:
    assert YT.locate({"proxy": proxy, "path": "//q"}).store.url == url


def test_a_proxy_that_is_a_directory_is_an_embedded_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hume").mkdir()
    monkeypatch.chdir(tmp_path)
    assert YT.locate({"proxy": "hume", "path": "//q"}).store.url == "hume"


def test_the_proxy_comes_last_from_the_configuration_of_ytsaurus_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("YT_PROXY", "HEADRACE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    file = tmp_path / "config"
    monkeypatch.setenv("YT_CONFIG_PATH", str(file))
    with pytest.raises(OptionError, match="option proxy is missing"):
        YT.locate({"path": "//q"})
    file.write_text('{proxy={url="hume"}; token="very-secret"}')
    assert YT.locate({"path": "//q"}).store.url == "yt://hume"
    assert YT.locate({"path": "//q", "proxy": "other"}).store.url == "yt://other"
    file.write_text('{proxy={url="hume"}; token="very-secret"')
    with pytest.raises(OptionError, match="YT_CONFIG_PATH") as broken:
        YT.locate({"path": "//q"})
    assert "very-secret" not in str(broken.value)


def test_the_environments_store_applies_without_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORE", "/shop")
    assert HEADRACE.locate({"table": "t"}) == Location(StoreAddress("/shop"), "t")
    assert HEADRACE.locate({"store": "/other", "table": "t"}).store.url == "/other"
    assert YT.locate({"path": "//q"}).store.url == "/shop"
    monkeypatch.setenv("YT_PROXY", "hume")
    assert YT.locate({"path": "//q"}).store.url == "yt://hume"
    assert YT.locate({"path": "//q", "Store": "/mine"}).store.url == "/mine"


def test_without_a_store_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    monkeypatch.delenv("YT_PROXY", raising=False)
    with pytest.raises(OptionError, match="option store is missing"):
        HEADRACE.locate({"table": "t"})
    with pytest.raises(OptionError, match="option proxy is missing"):
        YT.locate({"path": "//q"})


def test_a_location_keeps_whether_the_user_named_a_queue() -> None:
    assert HEADRACE.locate({"store": "s", "queue": "q"}) == Location(StoreAddress("s"), None, "q")
    assert HEADRACE.locate({"store": "s", "path": "either"}) == Location(StoreAddress("s"), "either")


@pytest.mark.parametrize("other", ["queues", "table", "path"])
def test_a_queue_and_another_name_are_an_error(other: str) -> None:
    with pytest.raises(OptionError, match=f"queue and {other} are both set"):
        HEADRACE.locate({"store": "s", "queue": "q", other: "x"})


@pytest.mark.parametrize("other", ["consumer", "queue", "queues"])
def test_a_tunnel_and_an_option_of_queues_are_an_error(other: str) -> None:
    with pytest.raises(OptionError, match=f"tunnel and {other} are both set"):
        HEADRACE.locate({"store": "s", "tunnel": "t", other: "x"})


def test_the_error_for_an_unknown_name_lists_tables_and_queues(tmp_path: Path) -> None:
    store = open_store(tmp_path / "shop", create=True, synchronous="off")
    store.create_table("orders", {"id": "long"}, "id")
    store.create_queue("clicks", {"id": "long"})
    given = {"store": store.url, "path": "click"}
    source = source_of("headrace", given)
    for open_it in (HEADRACE.locate(given).open, lambda opened: source.batch(opened).schema(opened)):
        with pytest.raises(NotFoundError, match="no such table or queue; received: 'click'; valid: orders, clicks"):
            open_it(store)
    with pytest.raises(OptionError, match="table or queue is missing; valid: orders, clicks"):
        HEADRACE.locate({"store": store.url}).open(store)


def test_names_that_contain_commas_are_a_json_list() -> None:
    assert names("clicks, taps") == ("clicks", "taps")
    assert names('["clicks, taps", "more"]') == ("clicks, taps", "more")
    for wrong in ("clicks,", "[1]", "[clicks"):
        with pytest.raises(ValueError, match="JSON list"):
            names(wrong)
