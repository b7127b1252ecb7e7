"""Opening of stores, and operations on a whole store."""

from __future__ import annotations

import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import (
    AlreadyExistsError,
    MissingDependencyError,
    NotFoundError,
    OptionError,
    SchemaError,
    StoreError,
)
from headrace.ports import Store
from headrace.support.extras import check_extras
from tests.unit.without_package import error_without

COLUMNS = {"id": "long", "value": "double"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "store", create=True, synchronous="off")


def test_a_path_and_its_url_are_one_store(tmp_path: Path) -> None:
    directory = tmp_path / "my shop"
    store = headrace.open(str(directory), create=True)
    store.create_table("orders", COLUMNS, "id")
    assert store.url == directory.resolve().as_uri()
    for address in (directory, str(directory), store.url, f"file://localhost{directory}", f"file:{directory}"):
        assert headrace.open(address).tables() == ["orders"]


def test_a_store_is_created_only_on_request(tmp_path: Path) -> None:
    for directory in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NotFoundError, match="create=True"):
            headrace.open(directory)
    assert list(tmp_path.iterdir()) == []
    headrace.open(tmp_path, create=True)
    assert headrace.open(tmp_path, create=True).tables() == []


def test_an_incomplete_store_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "db").touch()
    with pytest.raises(NotFoundError, match="create=True"):
        headrace.open(tmp_path)
    headrace.open(tmp_path, create=True)
    assert headrace.open(tmp_path).tables() == []


@pytest.mark.parametrize(
    "rest", ["user:pa@ss/word@host/db", "me:secret@host/db", "host/db?password=secret", "host/a/b"]
)
def test_an_invalid_address_of_a_database_is_refused_without_its_secrets(rest: str) -> None:
    with pytest.raises(OptionError) as caught:
        headrace.open(f"postgresql://{rest}")
    assert not any(part in str(caught.value) for part in ("pa@ss", "ss/word", "secret"))


def test_a_database_is_opened_with_options_that_stay_secret() -> None:
    store = headrace.open("postgres://me@127.0.0.1:1/shop", password="hush", sslmode="require")
    for each in (store, pickle.loads(pickle.dumps(store))):
        assert each.url == "postgresql://me@127.0.0.1:1/shop"
        assert "hush" not in repr(each) + repr(vars(each))
    with pytest.raises(OptionError, match=r"sslmod.*sslmode"):
        headrace.open("postgresql://host/db", sslmod="require")
    with pytest.raises(OptionError, match="also in the address"):
        headrace.open("postgresql://me@host/db", user="other")
    with pytest.raises(OptionError, match="retry_seconds"):
        headrace.open("postgresql://host/db", retry_seconds=-1)


@pytest.mark.parametrize("rest", ["user:pa@ss/word@host/db", "host/db?password=secret", "host", "host/a/b", "[bad/db"])
def test_an_invalid_address_of_an_instance_is_refused_without_its_secrets(rest: str) -> None:
    with pytest.raises(OptionError, match=r"tablestore\+https://host/instance") as caught:
        headrace.open(f"tablestore+https://{rest}", access_key_id="a", access_key_secret="b")
    assert not any(part in str(caught.value) for part in ("pa@ss", "ss/word", "secret="))


def test_an_instance_is_opened_with_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "tablestore+http://127.0.0.1:1/shop"
    for name in ("HEADRACE_ACCESS_KEY_ID", "HEADRACE_ACCESS_KEY_SECRET", "HEADRACE_STS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OptionError, match="HEADRACE_ACCESS_KEY_SECRET"):
        headrace.open(url, access_key_id="LTAItest")
    given = headrace.open(url, access_key_id="LTAItest", access_key_secret="hush")
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_ID", "LTAItest")
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_SECRET", "hush")
    for store in (given, headrace.open(url), pickle.loads(pickle.dumps(given))):
        assert (store.url, store.id) == (url, url)
        assert "hush" not in repr(store) + repr(vars(store))
    with pytest.raises(OptionError, match=r"write_rows.*rows_per_request"):
        headrace.open(url, write_rows=5)


def test_a_missing_package_is_named_with_the_command_that_installs_it() -> None:
    error = error_without("urllib3", "tablestore+http://127.0.0.1:1/shop")
    message = (
        "packages for a Tablestore instance are not installed; received: no module urllib3; "
        "pip install 'headrace[tablestore]'"
    )
    assert error.strip() == f"MissingDependencyError {message}"
    # Commands have the same form.
    with pytest.raises(MissingDependencyError) as raised:
        check_extras("a Tablestore instance", ("headrace[tablestore]", "urllib4"))
    assert str(raised.value) == message.replace("urllib3", "urllib4")


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("", {}),
        ("redis://user:password@host", {}),
        ("file://elsewhere/path", {}),
        ("file:///path?password=x", {}),
        ("file://[", {}),
        ("file:///a%00b", {}),
        ("store", {"sync": "full"}),
        ("store", {"synchronous": "sometimes"}),
    ],
)
def test_a_wrong_address_or_option_names_the_valid_ones(address: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="valid: ") as caught:
        headrace.open(address, **options)
    assert "password" not in str(caught.value)


def test_errors_name_only_existing_kinds_of_stores_as_valid() -> None:
    with pytest.raises(
        OptionError, match=r"received: redis://….*valid: .*tablestore\+https://.*option store"
    ) as caught:
        headrace.open("redis://host")
    assert "mysql://" not in str(caught.value)


@pytest.mark.parametrize("address", [None, 7, b"store", ["store"], float("nan")])
def test_an_address_must_be_a_text_or_a_path(address: Any) -> None:
    with pytest.raises(OptionError, match="text or a path"):
        headrace.open(address)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://host:80", "yt+http://host:port"),
        ("https://host", "tablestore+https://host/instance"),
        ("tablestore://host/shop", "tablestore+https://host/instance"),
        ("ytsaurus://proxy", "yt://proxy"),
        ("headrace:///shop", "a store is a directory or a URL"),
        ("yt:proxy", "two slashes"),
        ("tablestore+https:/host/shop", "two slashes"),
        ("jdbc:postgresql://host/db", "two slashes"),
        (Path("yt://proxy"), "a pathlib path drops one"),
        (Path("file:///shop"), "a pathlib path drops one"),
        ("yt://proxy?token=secret", "headrace.open(url, token=…)"),
        ("yt+https://proxy//home?token=secret", "headrace.open(url, token=…)"),
        ("file:///shop?synchronous=secret", "headrace.open(url, token=…)"),
        ("  ", "is empty"),
        ("sh\0op", "control character"),
        ("shop\n", "control character"),
        ("\ud800", "lone surrogate"),
    ],
)
def test_a_plausible_wrong_address_gets_an_error_with_the_right_form(
    address: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=re.escape(says)) as caught:
        headrace.open(address, create=True)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for address in ("~/shop", Path("~/shop"), "file:~/shop"):
        assert headrace.open(address, create=True).url == (tmp_path / "shop").as_uri()


def test_a_path_that_the_file_system_refuses_is_a_store_error(tmp_path: Path) -> None:
    for name in ("a" * 5000, "a/" * 3000):
        with pytest.raises(StoreError, match="File name too long"):
            headrace.open(tmp_path / name, create=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 2**70, "five", True])
def test_a_number_of_seconds_for_retries_is_in_range(value: Any) -> None:
    with pytest.raises(OptionError, match="retry_seconds"):
        headrace.open("yt://proxy", retry_seconds=value)
    with pytest.raises(OptionError, match="retry_seconds"):
        headrace.open("tablestore+http://h/i", access_key_id="a", access_key_secret="b", retry_seconds=value)


@pytest.mark.parametrize(
    ("url", "option", "near"),
    [
        ("shop", "synchronus", "synchronous"),
        ("yt://proxy", "retry_second", "retry_seconds"),
        ("tablestore+http://h/i", "access_key", "access_key_id"),
    ],
)
def test_an_unknown_option_of_a_store_is_refused_with_the_nearest_valid_one(url: str, option: str, near: str) -> None:
    given: dict[str, Any] = {option: "x"}
    with pytest.raises(OptionError, match=rf"did you mean {near}\?") as caught:
        headrace.open(url, **given)
    assert option in str(caught.value)
    assert near in str(caught.value.valid)


def test_tables_are_created_listed_and_dropped(store: Store) -> None:
    for name in ("b", "//tmp/ä b", "a"):
        store.create_table(name, COLUMNS, "id")
    assert store.tables() == ["//tmp/ä b", "a", "b"]
    with pytest.raises(AlreadyExistsError, match="exist_ok"):
        store.create_table("a", COLUMNS, "id")
    assert store.create_table("a", COLUMNS, "id", exist_ok=True).name == "a"
    with pytest.raises(SchemaError, match="other columns"):
        store.create_table("a", {"id": "long"}, "id", exist_ok=True)
    store.drop_table("a")
    with pytest.raises(NotFoundError, match="valid: //tmp/ä b, b"):
        store.table("a")
    with pytest.raises(NotFoundError):
        store.drop_table("a")
    store.drop_table("a", missing_ok=True)


@pytest.mark.parametrize(
    ("name", "options"), [("", {}), ("\ud800", {}), ("t", {"retention": 5}), ("t", {"retention_seconds": "long"})]
)
def test_a_table_with_an_invalid_name_or_option_is_refused(store: Store, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        store.create_table(name, COLUMNS, "id", **options)
    assert store.tables() == []


def test_a_recreated_table_has_nothing_of_the_old_one(store: Store) -> None:
    old = store.create_table("orders", COLUMNS, "id")
    old.put([{"id": 1, "value": 1.0}])
    store.drop_table("orders")
    new = store.create_table("orders", {"id": "long", "text": "string"}, "id")
    new.put([{"id": 2, "text": "x"}])
    assert old.get({"id": 2}) == {"id": 2, "text": "x"}
    assert new.describe().rows == 1


def test_a_wait_ends_when_another_handle_commits(store: Store) -> None:
    table = store.create_table("orders", COLUMNS, "id")
    store.wait_for_change(0)
    assert not store.wait_for_change(0)
    writer = threading.Thread(target=lambda: table.put([{"id": 1, "value": 1.0}]))
    writer.start()
    assert store.wait_for_change(60)
    writer.join()


def test_a_closed_store_can_be_used_again(store: Store) -> None:
    with store:
        store.create_table("orders", COLUMNS, "id")
    assert store.tables() == ["orders"]


def test_repr_shows_the_path(store: Store, tmp_path: Path) -> None:
    assert repr(store) == f"EmbeddedStore('{(tmp_path / 'store').resolve()}')"
