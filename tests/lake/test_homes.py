"""A home is that of one lake: another one is refused by name, before it reads or replaces a record."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import OptionError, StoreDamagedError
from headrace.model.findings import Status
from headrace.ports import Store
from headrace_lake.home import OWNER
from tests.conformance import serving
from tests.lake.buckets import PROGRAM, bucket
from tests.lake.icebergs import catalog
from tests.lake.jobs import publish

COLUMNS = {"id": "long", "name": "string"}
REFUSED = "records of another lake"


@pytest.fixture(params=["embedded", "postgres"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "home") if request.param == "embedded" else serving.postgres_database()


def lake(directory: Path, home: str | None = None) -> Store:
    """Return a lake with table ``t``."""
    store = headrace.open(f"delta://{directory}", create=True, home=home)
    store.create_table("t", COLUMNS, "id", exist_ok=True)
    return store


def test_a_second_lake_is_refused_and_changes_nothing(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first, lake(tmp_path / "second", home) as second:
        assert publish(first, 0, several=False)
        tunnel = first.create_tunnel("t", "changes")
        # An open store finds it at its next use, before the home is created as well as after.
        for use in (
            second.tables,
            second.tunnels,
            lambda: second.create_tunnel("t", "changes"),
            lambda: publish(second, 0, several=False),
            second.files,
            lambda: second.drop_table("t"),
        ):
            with pytest.raises(OptionError, match=REFUSED) as caught:
                use()
            assert f"delta://{tmp_path}/first" in str(caught.value)
            assert home not in str(caught.value)
        assert list(second.table("t")) == []
        assert any(each.status is Status.FAIL and REFUSED in each.found for each in second.diagnose())
        assert all(each.status is Status.OK for each in first.diagnose())
        assert publish(first, 1, several=False)
        assert first.tunnels()[0].id == tunnel.id
        assert first.publisher("job", "sink").last_batch() == 1
    with lake(tmp_path / "second", f"{tmp_path}/own") as second:
        assert publish(second, 0, several=False)


def test_a_lake_that_moves_keeps_its_home(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first:
        publish(first, 0, several=False)
    (tmp_path / "first").rename(tmp_path / "moved")
    with lake(tmp_path / "moved", home) as moved:
        assert moved.publisher("job", "sink").last_batch() == 0
        assert not publish(moved, 0, several=False)
    with lake(tmp_path / "first", home) as anew, pytest.raises(OptionError, match=REFUSED):
        anew.tables()
    with headrace.open(home) as store:
        store.drop_table(OWNER.name)
    with lake(tmp_path / "first", home) as anew:
        # As the message says: the records are those of the lake that was lost.
        publish(anew, 1, several=False)
        assert anew.publisher("job", "sink").last_batch() == 1


def test_a_damaged_identity_is_an_error_until_it_is_that_of_the_home(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first:
        publish(first, 0, several=False)
    file = tmp_path / "first" / "_headrace" / "identity"
    for content in (b"", b"\xff"):
        file.write_bytes(content)
        with lake(tmp_path / "first", home) as first, pytest.raises(StoreDamagedError, match="identity of a lake"):
            first.tables()
    with headrace.open(home) as store:
        # As the message says.
        file.write_text(json.loads(next(iter(store.table(OWNER.name)))["content"])["lake"].partition(" ")[0])
    with lake(tmp_path / "first", home) as first:
        assert first.publisher("job", "sink").last_batch() == 0


def test_a_copy_of_a_lake_is_refused(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first:
        publish(first, 0, several=False)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with lake(tmp_path / "copy", home) as copy:
        with pytest.raises(OptionError, match=f"{REFUSED}.*one is a copy of the other"):
            copy.tables()
        with pytest.raises(OptionError, match=REFUSED):
            publish(copy, 1, several=False)
    with lake(tmp_path / "copy", f"{tmp_path}/own") as copy:
        assert publish(copy, 1, several=False)
    with lake(tmp_path / "first", home) as first:
        assert publish(first, 1, several=False)
    # A copy in the place of the lake is that lake, as after a restore.
    shutil.rmtree(tmp_path / "first")
    (tmp_path / "copy").rename(tmp_path / "first")
    with lake(tmp_path / "first", home) as first:
        assert first.publisher("job", "sink").last_batch() == 1


def test_a_lake_that_moves_to_another_file_system_takes_its_home_again(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first:
        publish(first, 0, several=False)
    shutil.copytree(tmp_path / "first", tmp_path / "moved")
    shutil.rmtree(tmp_path / "first")
    with lake(tmp_path / "moved", home) as moved, pytest.raises(OptionError, match=f"drop {OWNER.name}"):
        moved.tables()
    with headrace.open(home) as store:
        store.drop_table(OWNER.name)
    with lake(tmp_path / "moved", home) as moved:
        assert not publish(moved, 0, several=False)
        assert publish(moved, 1, several=False)


def test_a_copy_with_its_home_is_a_lake_of_its_own(tmp_path: Path) -> None:
    with lake(tmp_path / "first") as first:
        publish(first, 0, several=False)
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    for name in ("first", "copy"):
        with lake(tmp_path / name) as store:
            assert not publish(store, 0, several=False)
            assert publish(store, 1, several=False)


def test_a_home_of_an_earlier_release_is_taken_with_its_records(home: str, tmp_path: Path) -> None:
    with lake(tmp_path / "first", home) as first:
        publish(first, 0, several=False)
        tunnel = first.create_tunnel("t", "changes")
    with headrace.open(home) as store:
        store.drop_table(OWNER.name)
    with lake(tmp_path / "first", home) as first:
        assert first.tunnel("changes").id == tunnel.id
        assert not publish(first, 0, several=False)
        assert publish(first, 1, several=False)
    with lake(tmp_path / "second", home) as second, pytest.raises(OptionError, match=REFUSED):
        second.tables()


def test_lakes_that_take_a_home_at_the_same_time(home: str, tmp_path: Path) -> None:
    stores = [lake(tmp_path / name, home) for name in ("first", "first", "second", "second")]

    def use(store: Store) -> bool:
        with suppress(OptionError):
            return bool(store.create_tunnel("t", f"t{stores.index(store)}").id)
        return False

    with ThreadPoolExecutor() as pool:
        first, again, second, later = pool.map(use, stores)
    assert first == again != second == later
    for store in stores:
        store.close()


def test_lakes_in_one_directory(tmp_path: Path) -> None:
    """By default, they have the same home."""
    catalog(tmp_path).create_tables()
    url = f"iceberg+sqlite://{tmp_path}/catalog.db"
    with lake(tmp_path) as delta, headrace.open(url) as iceberg, headrace.open(url, catalog="other") as other:
        publish(delta, 0, several=False)
        for store in (iceberg, other):
            with pytest.raises(OptionError, match=REFUSED):
                store.tables()
    with headrace.open(url, home=str(tmp_path / "own")) as iceberg:
        iceberg.create_table("t", COLUMNS, "id")
        assert publish(iceberg, 0, several=False)
        other = headrace.open(url, home=str(tmp_path / "own"), catalog="other")
        with other, pytest.raises(OptionError, match=r"'other' in catalog\.db"):
            other.tables()


@pytest.mark.parametrize("own_home", [False, True])
def test_catalogs_of_one_file_name_with_one_warehouse(own_home: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"warehouse": str(tmp_path / "warehouse")}
    if own_home:
        options["home"] = str(tmp_path / "home")
    urls = [f"iceberg+sqlite://{tmp_path}/{name}/catalog.db" for name in ("first", "second")]
    first, second = (headrace.open(url, create=True, **options) for url in urls)
    with first, second:
        assert first.create_table("t", COLUMNS, "id").name == "t"
        assert publish(first, 0, several=False)
        with pytest.raises(OptionError, match=rf"{REFUSED}.*second/catalog\.db"):
            second.tables()
    with headrace.open(urls[0], **options) as first:
        assert first.publisher("job", "sink").last_batch() == 0


@pytest.mark.skipif(PROGRAM is None, reason="moto's server is not installed: pip install 'moto[server]'")
def test_a_lake_in_a_bucket(tmp_path: Path) -> None:
    with bucket(tmp_path) as place:
        with place.open() as store:
            store.create_table("t", COLUMNS, "id")
            assert publish(store, 0, several=False)
        with place.open() as store:
            assert publish(store, 1, several=False)
        with lake(tmp_path / "second", str(place.home)) as second, pytest.raises(OptionError, match=REFUSED):
            second.tables()
