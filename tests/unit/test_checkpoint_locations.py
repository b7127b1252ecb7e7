"""Addresses of checkpoints in a store, and which store they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.checkpoints.locations import StoreLocation, parse_location, parse_served, served_url
from headrace.errors import OptionError
from headrace.spark import checkpoint_location


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("headrace:///jobs/orders", StoreLocation("headrace", None, "/jobs/orders")),
        ("HEADRACE:///jobs//orders/", StoreLocation("headrace", None, "/jobs/orders")),
        ("yt:///home/ckpt", StoreLocation("yt", None, "/home/ckpt")),
        ("yt:/home/ckpt", StoreLocation("yt", None, "/home/ckpt")),
        ("yt://cluster.example:8080/home/ckpt", StoreLocation("yt", "cluster.example:8080", "/home/ckpt")),
        ("/data/checkpoints", None),
        ("file:///data/checkpoints", None),
        ("s3a://bucket/yt", None),
        ("yt_checkpoints/job", None),
    ],
)
def test_an_address_in_a_store_is_known_by_its_scheme(url: str, expected: StoreLocation | None) -> None:
    assert parse_location(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "headrace:///",
        "headrace://",
        "yt:",
        "headrace://shop/orders",
        "yt:///a b",
        "yt:///é",
        "yt:///a/../b",
        "yt:///a?b",
    ],
)
def test_an_address_that_names_no_directory_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"a directory for a checkpoint|the path of a file"):
        parse_location(url)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(OptionError) as caught:
        parse_location("headrace://user:hush@host/a")
    assert "hush" not in str(caught.value)


def test_what_spark_gets_names_no_host_and_leads_back() -> None:
    url = served_url("store-1", "/jobs/orders")
    assert url.startswith("webhdfs://headrace/")
    assert url.endswith("/jobs/orders")
    assert url == served_url("store-1", "/jobs/orders") != served_url("store-2", "/jobs/orders")
    assert parse_served(url) == (url.split("/")[3], "/jobs/orders")
    assert parse_served("webhdfs://namenode:9870/jobs/orders") is None


def test_where_nothing_names_the_store_the_message_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("YT_PROXY", "HEADRACE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(OptionError, match="YT_PROXY or HEADRACE_STORE"):
        checkpoint_location.checkpoint("yt:///a")
    with pytest.raises(OptionError, match="variable HEADRACE_STORE"):
        checkpoint_location.checkpoint("headrace:///a")


def test_an_address_that_is_not_in_a_store_stays_as_it_is(tmp_path: Path) -> None:
    assert checkpoint_location.checkpoint(tmp_path) == str(tmp_path)
    assert checkpoint_location.checkpoint("s3a://bucket/a") == "s3a://bucket/a"
