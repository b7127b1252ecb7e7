"""Option readAs=table of format headrace: which reads it refuses, and where a query starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError, OptionError, UnsupportedError
from headrace.formats.headrace.source import HeadraceSource, HeadraceTunnel
from headrace.formats.old_rows import check_store
from headrace.formats.source import Source
from headrace.model.tunnels.values import Start, StartKind
from headrace.ports import Store
from headrace.stores.postgres.store import PostgresStore
from headrace_tablestore.store.store import TablestoreStore
from headrace_ytsaurus.store.store import YtStore


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    store.create_table("items", {"id": "long", "name": "string"}, "id", pre_images=True)
    for kind in ("BaseAndStream", "BaseData", "Stream"):
        store.create_tunnel("items", kind, kind)
    return store


def source(store: Store, tunnel: str = "BaseAndStream", **options: str) -> Source:
    return HeadraceSource({"store": store.url, "tunnel": tunnel, "readAs": "table"} | options)


def test_the_columns_are_those_of_changes(store: Store) -> None:
    assert source(store, "BaseData").schema() == source(store, readAs="changes").schema()
    assert source(store, readAs="TABLE").schema() == source(store, readAs="changes", preImages="false").schema()


def test_a_new_query_starts_at_the_beginning_of_the_tunnel(store: Store) -> None:
    assert HeadraceTunnel(source(store)).start() == Start(StartKind.BEGINNING)
    assert HeadraceTunnel(source(store, startingPosition="earliest")).start() == Start(StartKind.BEGINNING)
    assert HeadraceTunnel(source(store, readAs="changes")).start() == Start(StartKind.COMMITTED)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preImages": "false"}, "preImages=false hides the old rows"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss=false skips lost changes"),
        ({"startingPosition": "latest"}, "startingPosition skips rows"),
        ({"startingPosition": "2026-01-31"}, "startingPosition skips rows"),
        ({"startingPosition": '{"0": 5}'}, "startingPosition skips rows"),
    ],
)
def test_options_that_hide_rows_are_refused(store: Store, options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        source(store, **options).check_stream_read()
    source(store).check_stream_read()
    source(store, readAs="changes", **options).check_stream_read()


def test_a_read_without_a_tunnel_is_refused(store: Store) -> None:
    with pytest.raises(OptionError, match="needs a tunnel"):
        HeadraceSource({"store": store.url, "table": "items", "readAs": "table"}).check_stream_read()


def test_a_tunnel_without_base_data_is_refused(store: Store) -> None:
    with pytest.raises(OptionError, match=r"(?s)before tunnel 'Stream'.*of kind BaseAndStream"):
        source(store, "Stream").schema()
    source(store, "Stream", readAs="changes").schema()


def test_a_table_without_pre_images_is_refused(store: Store) -> None:
    store.table("items").set_options(pre_images=False)
    with pytest.raises(OptionError, match=r"(?s)'items' does not keep.*headrace table set items pre_images=true"):
        source(store).schema()
    with pytest.raises(HeadraceError, match="does not keep"):
        HeadraceTunnel(source(store)).open_checked(store)


def test_stores_whose_changes_lack_something_are_refused(store: Store) -> None:
    check_store(store.capabilities)
    check_store(PostgresStore.capabilities)
    for capabilities in (
        TablestoreStore.capabilities,
        YtStore.capabilities,
        replace(store.capabilities, tunnels=False),
        replace(store.capabilities, pre_images=False),
        replace(store.capabilities, whole_rows=False),
        replace(store.capabilities, tells_rows=False),
    ):
        with pytest.raises(
            UnsupportedError, match=r"a store without: .*an embedded store, a PostgreSQL database or Delta Lake"
        ):
            check_store(capabilities)
