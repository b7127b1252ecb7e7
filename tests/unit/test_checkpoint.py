"""Reading the checkpoint of a query: the offsets of its batches."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from headrace.ports import Advance
from headrace.spark.checkpoint import BatchOffsets, clear_unfinished_start

STORE = "store-1"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795259869171,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def offset(
    rows: dict[str, int],
    *,
    queue: str = "clicks",
    store: str = STORE,
    consumer: str | None = "c",
    queue_id: str = "7",
) -> str:
    """Return an offset as the queue source writes it."""
    ids = {queue: queue_id} if rows else {}
    return json.dumps({"store": store, "consumer": consumer, "queues": {queue: rows} if rows else {}, "ids": ids})


def checkpoint(directory: Path, *batches: list[str], version: str = "v1") -> str:
    """Write the offsets files of batches 0, 1, …, each with the given lines of its sources."""
    (directory / "offsets").mkdir()
    for number, lines in enumerate(batches):
        text = "\n".join([version, METADATA, *lines])
        (directory / "offsets" / str(number)).write_text(text)
    return str(directory)


def test_a_batch_advances_the_consumer_of_its_queue(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, [offset({"0": 5, "1": 2})], [offset({"0": 9, "1": 2})])
    assert BatchOffsets.read(at, 1).advances(STORE) == (Advance("c", "clicks", {0: 9}, {0: 5}),)
    assert BatchOffsets.read(f"file://{at}", 1).advances(STORE) == BatchOffsets.read(at, 1).advances(STORE)


def test_the_path_of_a_file_url_is_not_decoded(tmp_path: Path) -> None:
    directory = tmp_path / "a%20b c"
    directory.mkdir()
    at = checkpoint(directory, [offset({"0": 5})], [offset({"0": 9})])
    for place in (f"file://{at}", f"file:{at}", at):
        assert BatchOffsets.read(place, 1).content != ""
        assert len(BatchOffsets.read(place, 1).advances(STORE)) == 1


def test_an_added_partition_is_read_from_its_first_row(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, [offset({"0": 5})], [offset({"0": 5, "1": 3})])
    assert BatchOffsets.read(at, 1).advances(STORE) == (Advance("c", "clicks", {1: 3}, {1: 0}),)


def test_a_queue_that_was_created_again_is_read_from_its_first_row(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, [offset({"0": 3, "1": 2})], [offset({"0": 4, "1": 3}, queue_id="8")])
    assert BatchOffsets.read(at, 1).advances(STORE) == (Advance("c", "clicks", {0: 4, 1: 3}, {0: 0, 1: 0}),)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-", offset({"0": 5})),
        (offset({}), offset({"0": 5})),
        (offset({"0": 5}), offset({"0": 5})),
        (offset({"0": 5}, consumer=None), offset({"0": 9}, consumer=None)),
        (offset({"0": 5}, store="another"), offset({"0": 9}, store="another")),
        ("17", "18"),
        ('{"logOffset":0}', '{"logOffset":1}'),
        ('{"batch":"x"}', '{"batch":"y"}'),
        ("not JSON", "still not"),
    ],
    ids=["no offset", "start fixed", "no rows", "no consumer", "other store", "rate", "files", "tunnel", "broken"],
)
def test_other_offsets_do_not_advance_a_consumer(tmp_path: Path, before: str, after: str) -> None:
    assert BatchOffsets.read(checkpoint(tmp_path, [before], [after]), 1).advances(STORE) == ()


def test_each_source_is_compared_with_itself(tmp_path: Path) -> None:
    first, second = offset({"0": 1}), offset({"0": 10}, queue="views")
    at = checkpoint(tmp_path, [first, "7", second], [offset({"0": 2}), "8", offset({"0": 20}, queue="views")])
    assert BatchOffsets.read(at, 1).advances(STORE) == (
        Advance("c", "clicks", {0: 2}, {0: 1}),
        Advance("c", "views", {0: 20}, {0: 10}),
    )


def test_the_second_version_of_the_file_names_its_sources(tmp_path: Path) -> None:
    before = ["1:" + offset({"0": 1}), "0:" + offset({"0": 10}, queue="views")]
    after = ["0:" + offset({"0": 20}, queue="views"), "1:" + offset({"0": 2}), "2:-"]
    assert BatchOffsets.read(checkpoint(tmp_path, before, after, version="v2"), 1).advances(STORE) == (
        Advance("c", "views", {0: 20}, {0: 10}),
        Advance("c", "clicks", {0: 2}, {0: 1}),
    )


@pytest.mark.parametrize("version", ["v3", "", "{}"])
def test_a_file_of_an_unknown_version_advances_nothing(tmp_path: Path, version: str) -> None:
    at = checkpoint(tmp_path, [offset({"0": 5})], [offset({"0": 9})], version=version)
    assert BatchOffsets.read(at, 1).advances(STORE) == ()


def test_a_missing_or_remote_checkpoint_advances_nothing(tmp_path: Path) -> None:
    assert BatchOffsets.read(str(tmp_path), 3).advances(STORE) == ()
    assert BatchOffsets.read("hdfs://host/checkpoint", 3).advances(STORE) == ()
    assert BatchOffsets.read("hdfs://host/checkpoint", 3).content == ""


def test_offsets_of_an_earlier_batch_that_cannot_be_read_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = checkpoint(tmp_path, [offset({"0": 5})], [offset({"0": 9})])
    offsets = BatchOffsets.read(at, 1)
    (tmp_path / "offsets" / "0").write_bytes(b"\xff")
    with caplog.at_level(logging.WARNING, "headrace"):
        assert offsets.advances(STORE) == ()
    assert "batch 1" in caplog.text


def test_the_offsets_of_a_batch_are_read_once(tmp_path: Path) -> None:
    offsets = BatchOffsets.read(checkpoint(tmp_path, [offset({"0": 5})], [offset({"0": 9})]), 1)
    (tmp_path / "offsets" / "1").unlink()
    assert offsets.advances(STORE) == (Advance("c", "clicks", {0: 9}, {0: 5}),)
    assert offsets.content != ""


def test_batches_with_one_number_have_different_content(tmp_path: Path) -> None:
    at = checkpoint(tmp_path, [offset({"0": 5})], [offset({"0": 9})])
    contents = {BatchOffsets.read(at, 0).content, BatchOffsets.read(at, 1).content}
    assert len(contents - {""}) == 2
    assert BatchOffsets.read(at, 2).content == ""


def test_temporary_files_of_the_first_batch_are_deleted(tmp_path: Path) -> None:
    location = checkpoint(tmp_path)
    (tmp_path / "metadata").write_text("{}")
    (tmp_path / "offsets" / ".0.f009dcfe.tmp").write_text("v1")
    (tmp_path / "offsets" / "..0.f009dcfe.tmp.crc").write_bytes(b"crc")
    clear_unfinished_start(f"file://{location}")
    assert list((tmp_path / "offsets").iterdir()) == []
    assert (tmp_path / "metadata").exists()


def test_a_checkpoint_with_a_batch_is_not_changed(tmp_path: Path) -> None:
    location = checkpoint(tmp_path, [offset({"0": 3})])
    unfinished = tmp_path / "offsets" / ".1.f009dcfe.tmp"
    unfinished.write_text("v1")
    clear_unfinished_start(location)
    assert unfinished.exists()


def test_a_missing_checkpoint_is_not_an_error(tmp_path: Path) -> None:
    clear_unfinished_start(str(tmp_path / "none"))
    clear_unfinished_start("hdfs://namenode/none")
    assert not (tmp_path / "none").exists()
