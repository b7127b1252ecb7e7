"""The address of a cluster: valid and invalid ones, and that no token is shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import headrace
from headrace.errors import OptionError
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import Address
from headrace_ytsaurus.store.opening import open_store
from tests.unit.without_package import error_without

TOKEN = "AQAD-very-secret"


@pytest.mark.parametrize(
    ("url", "proxy", "directory"),
    [
        ("yt://hume", "hume", "//home/headrace"),
        ("yt://hume.yt.example.net:8080/", "hume.yt.example.net:8080", "//home/headrace"),
        ("yt+http://localhost:8080//home/me", "http://localhost:8080", "//home/me"),
        ("yt+https://hume/home/me/", "https://hume", "//home/me"),
        ("yt://[::1]:80//a/b%20c", "[::1]:80", "//a/b c"),
    ],
)
def test_a_url_names_a_proxy_and_a_directory(url: str, proxy: str, directory: str) -> None:
    store = headrace.open(url)
    assert (store._connection.address.proxy, store._names.directory) == (proxy, directory)  # type: ignore[attr-defined]
    assert store.url == url


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("yt://", {}),
        ("yt://user:pa@ss@hume", {}),
        ("yt://hume:99999", {}),
        ("yt://hume?token=secret", {}),
        ("yt://hume//a/@b", {}),
        ("yt://hume//a[#1]", {}),
        ("yt://hume", {"tokem": "a"}),
        ("yt://hume", {"token": "a\nb"}),
        ("yt://hume", {"retry_seconds": "many"}),
    ],
)
def test_a_wrong_address_or_option_is_refused_without_its_secrets(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        headrace.open(url, **options)
    assert not any(part in str(caught.value) for part in ("pa@ss", "secret", "a\nb"))


def test_a_token_is_sent_and_never_shown() -> None:
    store = open_store("yt://hume", {"token": TOKEN})
    again = pickle.loads(pickle.dumps(store))
    assert again._connection.address == Address("hume", TOKEN)
    shown = [repr(store), str(store), store.url, repr(store._connection), repr(store._connection.address)]
    assert TOKEN not in " ".join(shown)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    error = error_without("yt.common", "yt://hume")
    assert error.startswith("MissingDependencyError")
    assert "pip install 'headrace[yt]'" in error


def test_a_client_is_set_up_for_rows_and_patience() -> None:
    client = Address("http://localhost:1", TOKEN, 7).make_client("http://localhost:2")
    assert client.config["proxy"]["url"] == "http://localhost:2"
    assert client.config["proxy"]["enable_proxy_discovery"] is False
    assert client.config["proxy"]["content_encoding"] == "identity"
    # A transaction is lost with its proxy, so calls in it are retried for a shorter time.
    assert client.config["dynamic_table_retries"]["total_timeout"] == 1750
    whole = Address("http://localhost:1", TOKEN, 7).make_client()
    assert whole.config["proxy"]["retries"]["total_timeout"] == 7000


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("//tmp/q[#0:#5]", "chooses columns or rows"),
        ("//tmp/q{data}", "chooses columns or rows"),
        ("//tmp//q", "not a path of Cypress"),
    ],
)
def test_paths_of_parts_of_a_table_are_refused(name: str, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Names("//home/headrace").path(name)
