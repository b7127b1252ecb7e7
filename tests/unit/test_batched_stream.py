"""The arguments of `write_stream` are checked before Spark sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import OptionError
from headrace.formats.headrace.source import HEADRACE
from headrace.formats.location import Location
from headrace.formats.option_checks import SPARKS_OWN, check_options, checked_by_spark, option_texts, options_for
from headrace.formats.registry import FORMATS
from headrace.options.option import BATCH_READ, SINK, SOURCE
from headrace.spark.batched_stream import checked_trigger
from headrace.stores.registry import StoreAddress


class Stream:
    """A streaming DataFrame, without Spark."""

    isStreaming = True
    columns = ("_change_type",)
    sparkSession = type("Session", (), {"conf": {}})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"mode": "replace"}, "unknown value of mode; received: 'replace'; valid: append, update, complete"),
        ({"mode": None}, "valid: append, update, complete"),
        ({"format": "delta"}, "valid: headrace, tablestore, yt"),
        ({"format": 5}, "valid: headrace, tablestore, yt"),
        ({"checkpoint": "https://host/a"}, "yt+https://host/path"),
        ({"checkpoint": None}, "a stream without a name"),
        ({"options": {"rowChanges": "put"}}, "did you mean rowChange?"),
        ({"options": {"tunnel": "all"}}, "option tunnel has no effect in write_stream with format headrace"),
        ({"options": {"checkpointLocation": "/a"}}, "unknown option of write_stream"),
        ({"options": {"Table": "other"}}, "given twice"),
        ({"options": {5: "x"}}, "must be a text; received: 5"),
        ({"options": {"rowChange": b"put"}}, "received: bytes"),
        ({"options": [("rowChange", "put")]}, "must be a dict of names and values"),
        ({"options": {"rowChange": "replace_all"}, "outputs": None}, "valid: put, update, delete"),
        ({"row_change": "replace_all"}, "valid: put, update, delete"),
        ({"options": {"keyColumns": ","}}, "option keyColumns cannot be read"),
        ({"row_change": 5}, "valid: put, update, delete"),
        ({"key": 5}, "key spreads rows over the partitions of a queue"),
        ({"table": None, "outputs": [headrace.Output(table="t")] * 2}, "outputs have a table twice; received: 't'"),
        ({"format": "yt"}, "unknown option of write_stream with format yt; received: 'table'"),
        ({"trigger": {"availableNow": True, "once": True}}, "a trigger must have one entry"),
    ],
)
def test_the_error_for_a_bad_argument_is_clear(arguments: dict[str, Any], says: str, tmp_path: Path) -> None:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    store.create_table("t", {"id": "long"}, "id")

    given: dict[str, Any] = {"store": tmp_path / "shop", "table": "t", "checkpoint": tmp_path / "cp"} | arguments
    frame: Any = Stream()
    with pytest.raises(OptionError, match=re.escape(says)):
        headrace.write_stream(frame, **given).start()


@pytest.mark.parametrize(
    "trigger", [{}, {"availablenow": True}, {"processing_time": "1 s"}, {"once": True, "availableNow": True}, 5, "once"]
)
def test_only_sparks_triggers_are_valid(trigger: Any) -> None:
    with pytest.raises(OptionError, match="trigger"):
        checked_trigger(trigger)
    assert checked_trigger({"processingTime": "5 seconds", "once": None}) == {"processingTime": "5 seconds"}


def test_options_in_python_become_the_same_texts_as_in_spark() -> None:
    given = {"a": True, "b": 5, "c": 0.5, "d": "x", "e": None, "f": Path("/p")}
    assert option_texts(given, "x") == {"a": "true", "b": "5", "c": "0.5", "d": "x", "f": "/p"}
    assert option_texts(None, "x") == {}


@pytest.mark.parametrize("provider", FORMATS)
def test_the_options_of_a_format_and_of_spark_are_valid_in_any_case(provider: str) -> None:
    names = {option.name for option in FORMATS[provider].options} | set(SPARKS_OWN)
    for given in (names, {name.upper() for name in names}):
        checked = checked_by_spark(FORMATS[provider], dict.fromkeys(given, "1"))
        assert checked.keys() == {name.lower() for name in names}
    for name in ("foo", "mergeschema", "paths", "writeas", "tunnels"):
        with pytest.raises(OptionError, match=f"unknown option of format {provider}; received: '{name}'; valid: "):
            checked_by_spark(FORMATS[provider], {name: "1"})


def test_suggested_names_ignore_case_and_punctuation() -> None:
    for name, near in (
        ("max_rows_per_trigger", "maxRowsPerTrigger"),
        ("maxrowspertriger", "maxRowsPerTrigger"),
        ("row-change", "rowChange"),
        ("tabel", "table"),
    ):
        with pytest.raises(OptionError, match=rf"did you mean {near}\?"):
            check_options(HEADRACE, [name])
    with pytest.raises(OptionError) as caught:
        check_options(HEADRACE, ["x" * 100_000])
    assert "did you mean" not in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_properties_of_sparks_tables_are_not_options() -> None:
    table = {"provider": "headrace", "owner": "me", "tp": "5", "store": "s", "option.store": "s", "location": "file:/x"}
    assert checked_by_spark(HEADRACE, table) == {"store": "s"}
    with pytest.raises(OptionError, match="received: 'stor'"):
        checked_by_spark(HEADRACE, {"provider": "headrace", "stor": "s", "option.stor": "s"})


def test_an_option_of_another_use_is_an_error_or_is_left_out() -> None:
    with pytest.raises(OptionError, match=r"option rowChange has no effect in a scan.*stream write, batch write"):
        check_options(HEADRACE, ["ROWCHANGE"], use=SOURCE, place="a scan")
    given = {"Store": "s", "ROWCHANGE": "put", "maxRowsPerTrigger": "5", "splits": "2", "queryName": "q"}
    assert options_for(HEADRACE, given, SOURCE).keys() == {"Store", "maxRowsPerTrigger", "queryName"}
    assert options_for(HEADRACE, given, BATCH_READ).keys() == {"Store", "splits", "queryName"}
    assert options_for(HEADRACE, given, SINK).keys() == {"Store", "ROWCHANGE", "queryName"}


def test_all_values_from_spark_are_checked(tmp_path: Path) -> None:
    given = {"store": str(tmp_path), "table": "t"}
    headrace.HeadraceDataSource(dict(given))
    for name, value in (("rowChange", "replace_all"), ("splits", "nan"), ("preImages", "yes"), ("foo", "bar")):
        with pytest.raises(OptionError, match=f"{name}.*valid: "):
            headrace.HeadraceDataSource(given | {name: value})


def test_a_stream_that_is_not_started_shows_no_address() -> None:
    store, checkpoint = "postgresql://shop:s3cret@db/shop", "s3a://key:s3cret@bucket/checkpoint"
    stream: Any = Stream()
    outputs = [headrace.Output(table="t")]
    writer = headrace.write_stream(stream, store=store, outputs=outputs, checkpoint=checkpoint)
    assert "s3cret" not in repr(writer)
    assert "s3cret" not in repr(Location(StoreAddress(store), "t"))
