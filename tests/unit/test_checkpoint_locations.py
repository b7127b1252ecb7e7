"""Addresses of checkpoints in a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint_server.locations import parse_served, served_url
from headrace.errors import OptionError
from headrace.formats.checkpoint_locations import StoreLocation, checkpoint_text, parse_location
from headrace.formats.registry import checkpoint_scheme
from headrace.spark import checkpoint_location


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("headrace:///jobs/orders", StoreLocation("headrace", None, "/jobs/orders")),
        ("HEADRACE:///jobs//orders/", StoreLocation("headrace", None, "/jobs/orders")),
        ("yt:///home/ckpt", StoreLocation("yt", None, "/home/ckpt")),
        ("yt:/home/ckpt", StoreLocation("yt", None, "/home/ckpt")),
        ("yt://cluster.example:8080/home/ckpt", StoreLocation("yt", "cluster.example:8080", "/home/ckpt")),
        ("yt://cluster//home/ckpt", StoreLocation("yt", "cluster", "/home/ckpt")),
        ("yt+http://127.0.0.1:8080//home/ckpt", StoreLocation("yt", "http://127.0.0.1:8080", "/home/ckpt")),
        ("YT+HTTPS://cluster/home/ckpt", StoreLocation("yt", "https://cluster", "/home/ckpt")),
        ("postgresql:///jobs/orders", StoreLocation("postgresql", None, "/jobs/orders")),
        ("/data/checkpoints", None),
        ("file:///data/checkpoints", None),
        ("s3a://bucket/yt", None),
        ("yt_checkpoints/job", None),
    ],
)
def test_the_scheme_identifies_an_address_in_a_store(url: str, expected: StoreLocation | None) -> None:
    assert parse_location(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "headrace:///",
        "headrace://",
        "yt:",
        "headrace://shop/orders",
        "yt:///a b",
        "postgresql://host/db",
        "postgresql://me:secret@host/db/a",
        "postgresql:///a?password=secret",
        "yt:///é",
        "yt:///a/../b",
        "yt:///a?b",
        "yt+http:///a",
        "yt+http:/a",
        "yt+https://cluster",
        "yt://cluster/a?token=secret",
        "yt+https://me:secret@cluster/a",
        "headrace:///a\nb",
    ],
)
def test_an_address_without_a_directory_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"a directory for a checkpoint|invalid path of a file") as caught:
        parse_location(url)
    assert "secret" not in str(caught.value)


def test_an_error_does_not_show_a_password_in_the_address() -> None:
    with pytest.raises(OptionError) as caught:
        parse_location("headrace://user:hush@host/a")
    assert "hush" not in str(caught.value)


def test_the_address_for_spark_has_no_host_and_can_be_parsed() -> None:
    url = served_url("store-1", "/jobs/orders")
    assert url.startswith("webhdfs://headrace/")
    assert url.endswith("/jobs/orders")
    assert url == served_url("store-1", "/jobs/orders") != served_url("store-2", "/jobs/orders")
    assert parse_served(url) == (url.split("/")[3], "/jobs/orders")
    assert parse_served("webhdfs://namenode:9870/jobs/orders") is None


def test_an_error_names_the_settings_that_name_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("YT_PROXY", "HEADRACE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(OptionError, match="YT_PROXY or HEADRACE_STORE"):
        checkpoint_location.checkpoint("yt:///a")
    with pytest.raises(OptionError, match="variable HEADRACE_STORE"):
        checkpoint_location.checkpoint("headrace:///a")


def test_a_checkpoint_in_a_database_is_in_the_sink_or_in_the_database_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("HEADRACE_STORE", "PGSERVICE", "PGHOST", "PGDATABASE"):
        monkeypatch.delenv(variable, raising=False)
    scheme = checkpoint_scheme("postgresql")
    assert not scheme.replaces_sink("postgresql://me@host/db")
    assert scheme.replaces_sink("/data/shop")
    with pytest.raises(OptionError, match="HEADRACE_STORE or PGSERVICE or PGHOST or PGDATABASE"):
        checkpoint_location.checkpoint("postgresql:///a")
    monkeypatch.setenv("HEADRACE_STORE", "/data/shop")
    assert scheme.default_store() is None
    monkeypatch.setenv("PGSERVICE", "shop")
    assert scheme.default_store() == "postgresql://"
    monkeypatch.setenv("HEADRACE_STORE", "postgresql://me@host/db")
    assert scheme.default_store() == "postgresql://me@host/db"


@pytest.mark.parametrize(
    "place",
    ["/a b/c%20d", "a/b", "a b", "~somebody/a", "s3a://bucket/a", "hdfs://host:8020/a", "hdfs:///a", "dbfs:/a",
     "file:///a%20b", "file:///a b", "headrace:///a", "yt+http://h:80/a", "webhdfs://headrace/0/a"],
)  # fmt: skip
def test_valid_addresses_are_not_changed(place: str) -> None:
    assert checkpoint_text(place) == place


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("file:/a/b", "file:///a/b"),
        ("FILE:////a", "file:///a"),
        ("file://localhost/a", "file:///a"),
        (Path("/a/b"), "/a/b"),
        (Path("a b"), "a b"),
        ("~", "/home/me"),
        ("~/a", "/home/me/a"),
        (Path("~/a"), "/home/me/a"),
    ],
)
def test_all_forms_of_a_local_directory_are_accepted(place: Any, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert checkpoint_text(place) == meant


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("tablestore+https://host/shop/a", "a store of format tablestore has no files"),
        ("tablestore+http://secret@host/shop", "a store of format tablestore has no files"),
        ("postgres://me:secret@host/db", "postgresql:///path"),
        ("jdbc:postgresql://host/db?password=secret", "postgresql:///path"),
        ("http://host:80/a", "yt+http://host:port/path"),
        ("https://me:secret@host/a", "yt+https://host/path"),
        ("ytsaurus://proxy/a", "yt://proxy/path"),
        ("//home/project/a", "yt:///home/project/a"),
        ("file://a/b", "file:///path, or the path alone"),
        ("file:a/b", "file:///path, or the path alone"),
        ("file://", "file:///path, or the path alone"),
        (Path("headrace:///a"), "pass the URL as a string"),
        (Path("yt://proxy/a"), "pass the URL as a string"),
        (Path("s3a://bucket/a"), "pass the URL as a string"),
        ("", "the checkpoint is empty"),
        ("  ", "the checkpoint is empty"),
        (" /a", "begins or ends with white space"),
        ("headrace:///a\n", "begins or ends with white space"),
        ("/a\0b", "a control character"),
        ("/\ud800", "a lone surrogate"),
        (None, "a string or a path; received: NoneType"),
        (b"/a", "a string or a path; received: bytes"),
        (5, "a string or a path; received: int"),
        (["/a"], "a string or a path; received: list"),
    ],
)
def test_invalid_addresses_are_refused_with_a_remedy(place: Any, says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)) as caught:
        checkpoint_text(place)
    assert "secret" not in str(caught.value)


def test_an_unknown_file_system_is_an_option_error() -> None:
    for text in (
        'UnsupportedFileSystemException: No FileSystem for scheme "foo"\n\tat …\nCaused by: java.x.E: foo://me:secret@h',
        "[CANNOT_LOAD_CHECKPOINT_FILE_MANAGER.UNCATEGORIZED] …\nCaused by: java.net.UnknownHostException: h\n\tat",
    ):
        with (
            pytest.raises(
                OptionError, match=r"cannot open this checkpoint.*received: foo:….*headrace:///path"
            ) as caught,
            checkpoint_location.checkpoint_errors("foo://h/a"),
        ):
            raise RuntimeError(text)
        assert "secret" not in str(caught.value)
    with pytest.raises(RuntimeError, match="else"), checkpoint_location.checkpoint_errors("/a"):
        raise RuntimeError("something else")


def test_an_address_outside_of_stores_is_not_changed(tmp_path: Path) -> None:
    assert checkpoint_location.checkpoint(tmp_path) == str(tmp_path)
    assert checkpoint_location.checkpoint("s3a://bucket/a") == "s3a://bucket/a"


@pytest.mark.parametrize("place", ["checkpoints/a", "s3a://secret@bucket/a"])
def test_a_store_for_a_location_outside_of_stores_is_refused(place: str) -> None:
    with pytest.raises(OptionError, match=r"not in a store.*headrace:///path") as caught:
        checkpoint_location.checkpoint(place, store="shop")
    assert "secret" not in str(caught.value)
