"""Options of the formats: typed, checked, and silent about secrets."""

from __future__ import annotations

import pytest

from headrace.errors import OptionError
from headrace.model import Limits, Start, StartKind
from headrace.spark.options import HEADRACE_OPTIONS, TABLESTORE_OPTIONS, Location, Settings, locate

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
