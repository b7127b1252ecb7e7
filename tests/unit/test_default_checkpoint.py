"""The checkpoint of a stream that names none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headrace
from headrace.errors import AlreadyExistsError, OptionError, UnsupportedError
from headrace.formats.checkpoint_locations import parse_location
from headrace.ports import Store
from headrace.spark.default_checkpoint import default_checkpoint, given_checkpoint, record_stream


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as created:
        yield created


def test_it_is_in_the_store_under_the_name_of_the_stream(store: Store) -> None:
    assert default_checkpoint(store, "daily-totals") == "headrace:///streams/daily-totals"
    assert default_checkpoint(store, "Daily-Totals") == "headrace:///streams/daily-totals"


def test_different_names_have_different_valid_paths(store: Store) -> None:
    names = ["a b", "a/b", "a=20b", "a.b", ".", "..", "é", "a\tb", "a+b", "a~b", "\ud800", "*", "a_b", "a-b", " a"]
    locations = [default_checkpoint(store, name) for name in names]
    assert len(set(locations)) == len(names)
    for location in locations:
        parsed = parse_location(location)
        assert parsed is not None
        assert re.fullmatch(r"/streams/[^/]+", parsed.path), location


@pytest.mark.parametrize("name", [None, "", "  "])
def test_a_stream_without_name_and_checkpoint_is_refused(name: str | None, store: Store) -> None:
    with pytest.raises(OptionError, match=r"name='…', or checkpoint="):
        given_checkpoint(None, name)
    with pytest.raises(OptionError, match="a stream without a name needs a checkpoint location"):
        default_checkpoint(store, name)
    assert given_checkpoint("some/directory", name) == "some/directory"
    assert given_checkpoint(None, "named") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: headrace.mirror(cast("Any", None), table="orders"),
        lambda: headrace.follow(cast("Any", None), "SELECT 1", scans={}),
        lambda: headrace.merge(
            cast("Any", None), "MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE", scans={}
        ),
        lambda: headrace.write_stream(cast("Any", SimpleNamespace(sparkSession=None)), table="orders"),
    ],
)
def test_each_kind_of_stream_needs_a_name_or_a_checkpoint(call: Callable[[], object]) -> None:
    with pytest.raises(OptionError, match="a stream without a name needs a checkpoint location"):
        call()


def test_a_store_without_files_asks_for_a_location(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "capabilities", replace(store.capabilities, files=False))
    with pytest.raises(UnsupportedError, match=r"checkpoint=… in Python, OPTIONS \(checkpointLocation"):
        default_checkpoint(store, "totals")


def test_the_same_stream_takes_its_checkpoint_again(store: Store) -> None:
    location = default_checkpoint(store, "totals")
    record_stream(store, location, "totals", ["b", "a"], "query 1")
    record_stream(store, location, "totals", ["a", "b"], "query 1")


@pytest.mark.parametrize(
    ("writes", "definition", "how"),
    [(["others"], "query 1", "it writes totals"), (["totals"], "query 2", "its query differs")],
)
def test_another_stream_of_the_same_name_is_refused(store: Store, writes: list[str], definition: str, how: str) -> None:
    location = default_checkpoint(store, "totals")
    record_stream(store, location, "totals", ["totals"], "query 1")
    store.files().write("/streams/totals/metadata", b"{}")
    store.files().write("/streams/totals/offsets/0", b"v1")
    with pytest.raises(AlreadyExistsError, match=how) as refusal:
        record_stream(store, location, "totals", writes, definition)
    assert "checkpointLocation = 'headrace:///streams/totals'" in str(refusal.value)


def test_a_stream_whose_start_failed_leaves_its_name_to_another(store: Store) -> None:
    location = default_checkpoint(store, "totals")
    record_stream(store, location, "totals", ["totals"], "query 1")
    store.files().write("/streams/totals/metadata", b"{}")
    store.files().make_directory("/streams/totals/offsets")
    record_stream(store, location, "totals", ["others"], "query 2")
    store.files().write("/streams/totals/offsets/0", b"v1")
    record_stream(store, location, "totals", ["others"], "query 2")
    with pytest.raises(AlreadyExistsError, match="it writes others"):
        record_stream(store, location, "totals", ["totals"], "query 1")


def test_a_checkpoint_that_was_named_is_not_taken_by_default(store: Store) -> None:
    location = default_checkpoint(store, "totals")
    store.files().write("/streams/totals/metadata", b"{}")
    with pytest.raises(AlreadyExistsError, match="explicit checkpoint location"):
        record_stream(store, location, "totals", ["totals"], "")
