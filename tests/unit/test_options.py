"""Options of the formats: typed, checked, and silent about secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.feeds.queue_positions import RowStart
from headrace.model import Limits, Start, StartKind
from headrace.spark.option_values import names
from headrace.spark.options import HEADRACE_OPTIONS, TABLESTORE_OPTIONS, YT_OPTIONS, Location, Settings, locate

ORDERS = {"endpoint": "/data", "instance.name": "vehicle-test", "table.name": "OrderSource"}


def headrace(**options: str) -> Settings:
    return Settings(HEADRACE_OPTIONS, options)


def test_names_are_compared_without_case() -> None:
    assert headrace(MAXROWSPERTRIGGER="5").get("maxRowsPerTrigger") == 5


def test_limits_are_read_with_their_units() -> None:
    settings = headrace(
        maxRowsPerChannel="10",
        maxRowsPerTrigger="20",
        maxBytesPerTrigger="64m",
        minRowsPerTrigger="3",
        maxTriggerDelay="2m",
    )
    assert settings.limits() == Limits(10, 20, 64 << 20, 3, 120.0)
    assert headrace().limits() == Limits()


def test_the_connectors_limits_have_its_defaults() -> None:
    assert Settings(TABLESTORE_OPTIONS, ORDERS).limits().rows_per_channel == 10_000
    assert Settings(TABLESTORE_OPTIONS, {"maxoffsetsperchannel": "-1"}).limits().rows_per_channel is None


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
def test_a_bad_value_names_what_was_received_and_what_is_valid(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        headrace(**{name: value}).get(name)
    assert value in str(caught.value)
    assert "valid:" in str(caught.value)


def test_a_near_miss_names_the_option_that_was_meant() -> None:
    with pytest.raises(OptionError, match="did you mean maxRowsPerTrigger"):
        headrace(maxRowPerTriger="5")


def test_options_of_spark_and_of_others_are_let_through() -> None:
    headrace(checkpointLocation="/c", queryName="q", mergeSchema="true")


def test_repr_shows_no_values() -> None:
    settings = Settings(TABLESTORE_OPTIONS, ORDERS | {"access.key.secret": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert "access.key.secret" in repr(settings)


@pytest.mark.parametrize("endpoint", ["/data", "file:///data", "file:/data"])
def test_a_directory_as_endpoint_is_an_embedded_store_in_the_instances_sub_directory(endpoint: str) -> None:
    assert locate("tablestore", ORDERS | {"endpoint": endpoint}) == Location("/data/vehicle-test", "OrderSource")


def test_missing_options_are_asked_for_in_the_connectors_order() -> None:
    for name in ("table.name", "instance.name", "endpoint"):
        with pytest.raises(OptionError, match=f"option {name} is missing"):
            locate("tablestore", {key: value for key, value in ORDERS.items() if key != name})
    with pytest.raises(OptionError, match=r"access\.key\.id"):
        locate("tablestore", ORDERS | {"endpoint": "http://example.com"})


@pytest.mark.parametrize("instance", ["..", "a/b", "."])
def test_an_instance_cannot_point_out_of_the_endpoint(instance: str) -> None:
    with pytest.raises(OptionError, match=r"instance\.name"):
        locate("tablestore", ORDERS | {"instance.name": instance})


def test_start_positions() -> None:
    assert headrace().get("startingPosition") == Start()
    assert headrace(startingPosition="LATEST").get("startingPosition").kind is StartKind.LATEST
    timestamp = headrace(startingPosition="2026-01-31T12:00:00").get("startingPosition").timestamp
    assert timestamp.isoformat() == "2026-01-31T12:00:00+00:00"


def test_row_indexes_as_start_position() -> None:
    assert headrace(startingPosition='{"q": {"0": 5}}').get("startingPosition") == RowStart({"q": {0: 5}})
    assert headrace(startingPosition='{"0": 5}').get("startingPosition") == RowStart({None: {0: 5}})


def test_limits_go_by_the_name_that_each_format_has_for_a_partition() -> None:
    assert headrace(maxRowsPerPartition="7").limits().rows_per_channel == 7
    assert Settings(YT_OPTIONS, {"max_rows_per_partition": "1000"}).limits().rows_per_channel == 1000
    assert Settings(YT_OPTIONS, {}).limits() == Limits()


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("//tmp/q", "//tmp/q"),
        ("<append=%true>//tmp/q", "//tmp/q"),
        ('<a="x>\\"y"; b=1> <c=2>//tmp/q', "//tmp/q"),
        ("plain name", "plain name"),
    ],
)
def test_attributes_in_front_of_a_path_are_dropped(given: str, path: str) -> None:
    assert locate("yt", {"store": "/data", "path": given}).table == path
    assert Settings(YT_OPTIONS, {"consumer_path": given}).get("consumer_path") == path


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
    assert locate("yt", {"proxy": proxy, "path": "//q"}).store_url == url


def test_a_proxy_that_is_a_directory_here_is_an_embedded_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hume").mkdir()
    monkeypatch.chdir(tmp_path)
    assert locate("yt", {"proxy": "hume", "path": "//q"}).store_url == "hume"


def test_the_environment_names_the_store_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STORE", "/shop")
    assert locate("headrace", {"table": "t"}) == Location("/shop", "t")
    assert locate("headrace", {"store": "/other", "table": "t"}).store_url == "/other"
    assert locate("yt", {"path": "//q"}).store_url == "/shop"
    monkeypatch.setenv("YT_PROXY", "hume")
    assert locate("yt", {"path": "//q"}).store_url == "yt://hume"
    assert locate("yt", {"path": "//q", "Store": "/mine"}).store_url == "/mine"


def test_without_any_store_the_option_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    monkeypatch.delenv("YT_PROXY", raising=False)
    with pytest.raises(OptionError, match="option store is missing"):
        locate("headrace", {"table": "t"})
    with pytest.raises(OptionError, match="option proxy is missing"):
        locate("yt", {"path": "//q"})


def test_a_location_says_what_the_user_called_a_queue() -> None:
    assert locate("headrace", {"store": "s", "queue": "q"}) == Location("s", None, "q")
    assert locate("headrace", {"store": "s", "path": "either"}) == Location("s", "either")


@pytest.mark.parametrize("other", ["queues", "table", "path"])
def test_two_names_for_what_is_meant_are_refused(other: str) -> None:
    with pytest.raises(OptionError, match=f"queue and {other} are both set"):
        locate("headrace", {"store": "s", "queue": "q", other: "x"})


def test_names_with_commas_in_them_are_given_as_a_list() -> None:
    assert names("clicks, taps") == ("clicks", "taps")
    assert names('["clicks, taps", "more"]') == ("clicks, taps", "more")
    for wrong in ("clicks,", "[1]", "[clicks"):
        with pytest.raises(ValueError, match="JSON list"):
            names(wrong)
