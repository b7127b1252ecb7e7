"""Values that headrace's types do not have: errors, nulls or PostgreSQL's texts, by option ``unrepresentable``."""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.formats.headrace.source import HeadraceSource
from headrace.model.tunnels.values import ChannelKind
from headrace.monitoring.exposition import exposition, make_registry
from headrace.ports import Store, Tunnel
from headrace.support import counters
from headrace.testing.reading import drain
from tests.conformance import serving

Server = psycopg.Connection[tuple[Any, ...]]
# The type of a column, a text of a value that headrace's type does not have, and one that it has.
VALUES = {
    "day": ("date", "infinity", "2024-01-01"),
    "until": ("timestamptz", "-infinity", "2024-01-01 10:00:00+00"),
    "late": ("timestamp", "294270-01-01 00:00:00", "2024-01-01 10:00:00"),
    "price": ("numeric(10,2)", "NaN", "1.50"),
    "grid": ("int[]", "{{1,2},{3,4}}", "{1,2}"),
    "days": ("date[]", "{2024-01-01,infinity}", "{2024-01-01,NULL}"),
    "prices": ("numeric(5,1)[]", "{1.5,NaN}", "{1.5}"),
}
NULLS, TEXTS = (dict.fromkeys(VALUES, choice) for choice in ("null", "text"))


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return serving.postgres_database(f"unrepresentable{abs(hash(request.node.nodeid)):x}")


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with psycopg.connect(url, user="postgres", autocommit=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    with headrace.open(url) as store:
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)


@pytest.fixture
def counted() -> Iterator[None]:
    # Another test of the process may have counted.
    counters.disable()
    counters.enable()
    yield
    counters.disable()


def create(server: Server, *, binary: bool = True) -> None:
    """Create a table; a column without a binary format lets its slot send texts."""
    columns = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, *_) in VALUES.items())
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns}{'' if binary else ', pause interval'})")


def insert(server: Server, row: int, *, good: bool) -> None:
    texts = [texts[good] for _, *texts in VALUES.values()]
    values = ", ".join(f"%s::text::{kind}" for kind, *_ in VALUES.values())
    server.execute(f"INSERT INTO t VALUES ({row}, {values})", texts)


def read(tunnel: Tunnel) -> dict[int, dict[str, Any]]:
    rows = (row for batch in tunnel.consume(client="test", idle="stop") for row in batch.to_arrow().to_pylist())
    return {row["id"]: {name: row[name] for name in VALUES} for row in rows}


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("base", [True, False])
def test_nulls_and_texts_instead_of_values_that_stop_a_tunnel(
    url: str, server: Server, caplog: pytest.LogCaptureFixture, *, binary: bool, base: bool
) -> None:
    create(server, binary=binary)
    caplog.set_level(logging.WARNING, "headrace")
    with (
        headrace.open(url) as plain,
        headrace.open(url, unrepresentable=NULLS) as nulls,
        headrace.open(url, unrepresentable=TEXTS) as texts,
    ):
        if not base:
            for name in ("plain", "nulls", "texts"):
                plain.create_tunnel("t", name)
        insert(server, 1, good=False)
        insert(server, 2, good=True)
        if base:
            for store, name in ((nulls, "nulls"), (texts, "texts")):
                store.create_tunnel("t", name)
        if not base:
            warnings = plain.tunnel("plain").describe().warnings
            assert [each for each in warnings if "has a value that does not fit its type" in each]
        for attempt in (lambda: plain.table("t").scan().read_all(), lambda: read(plain.tunnel("plain"))):
            if not base:
                with pytest.raises(SchemaError, match=r"option unrepresentable='\w+=null' \(or \w+=text"):
                    attempt()
        own = dict(zip(VALUES, server.execute(f"SELECT {_texts()} FROM t WHERE id = 1").fetchone() or (), strict=True))
        found = read(nulls.tunnel("nulls"))
        assert found[1] == dict.fromkeys(VALUES)
        assert None not in found[2].values()
        # Of base data when it is read, at the creation of the tunnel.
        assert "column until of table t: headrace's type does not have 1 values, which are null" in caplog.text
        assert _scan(nulls) == found
        with_texts = read(texts.tunnel("texts"))
        assert with_texts[1] == own == {name: bad for name, (_, bad, _) in VALUES.items()}
        assert with_texts == _scan(texts)
        assert texts.table("t").get({"id": 2}, ["grid"]) == {"grid": "{1,2}"}
        texts.table("t").put(texts.table("t").scan().read_all())
        assert server.execute(f"SELECT {_texts()} FROM t WHERE id = 1").fetchone() == tuple(own.values())


@pytest.mark.parametrize("binary", [True, False])
def test_a_key_can_be_a_text_and_not_null(url: str, server: Server, *, binary: bool) -> None:
    server.execute(f"CREATE TABLE t (day date PRIMARY KEY{'' if binary else ', pause interval'})")
    remedy = (
        r"open the store with option unrepresentable='day=text'; on the command line it is "
        r"--store-option 'unrepresentable=day=text'$"
    )
    with headrace.open(url) as store:
        tunnel = store.create_tunnel("t", "changes")
        server.execute("INSERT INTO t VALUES ('infinity')")
        with pytest.raises(SchemaError, match=f"^column 'day' .*; {remedy}"):
            store.table("t").scan().read_all()
        with pytest.raises(SchemaError, match=f"^column 'day' .* the log have it, {remedy}"):
            drain(tunnel)
    with headrace.open(url, unrepresentable="day=text") as store:
        assert store.table("t").scan(["day"]).read_all().to_pylist() == [{"day": "infinity"}]


def test_nulls_are_counted_wherever_they_are_shown(
    url: str, server: Server, caplog: pytest.LogCaptureFixture, counted: None
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, day date, grid int[], plain int)")
    server.execute("INSERT INTO t VALUES (1, 'infinity', '{{1}}'), (2, NULL, NULL), (3, '2024-01-01', '{1}')")
    caplog.set_level(logging.WARNING, "headrace")

    def counts() -> tuple[int, int]:
        found = counters.of_family("unrepresentable")
        return tuple(found[("t", name)].count if ("t", name) in found else 0 for name in ("day", "grid"))  # type: ignore[return-value]

    with headrace.open(url, unrepresentable="day=null,grid=null,plain=null") as store:
        table = store.table("t")
        tunnel = store.create_tunnel("t", "changes")
        assert counts() == (1, 1)
        server.execute("INSERT INTO t VALUES (4, '-infinity', NULL)")
        assert [row["id"] for row in _changes(tunnel)] == [1, 2, 3, 4]
        assert counts() == (2, 1)
        assert table.scan().read_all().column("day").null_count == 3
        assert counts() == (4, 2)
        assert table.scan(["id", "grid"]).read_all().schema.names == ["id", "grid"]
        assert counts() == (4, 3)
        assert table.get({"id": 1}, ["day"]) == {"day": None}
        assert table.get_many([{"id": 4}, {"id": 3}], ["day", "plain"]).column("day").null_count == 1
        assert counts() == (6, 3)
        metrics, _ = exposition(make_registry())
        assert b'headrace_unrepresentable_values_total{column="day",table="t"} 6.0' in metrics
    assert "column grid of table t: headrace's type does not have 1 values, which are null" in caplog.text


def test_the_command_line_has_the_option(
    url: str, server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, day date)")
    server.execute("INSERT INTO t VALUES (1, 'infinity')")
    assert main(["table", "scan", "t", "-s", url]) == 1
    remedy = re.search(r"--store-option '(.*)'", " ".join(capsys.readouterr().err.split()))
    assert remedy is not None
    option = ["-s", url, "--json", "--store-option", remedy[1]]
    for command in (
        ["table", "scan", "t"],
        ["table", "head", "t"],
        ["query", "SELECT * FROM t"],
        ["tunnel", "create", "t", "changes"],
        ["tunnel", "tail", "changes", "--no-follow"],
        ["export", "t", str(tmp_path / "t.jsonl")],
    ):
        assert main([*command, *option]) == 0, capsys.readouterr()
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["day"] for row in shown if "day" in row] == [None] * 4
    assert main(["table", "scan", "t", "-s", url, "--store-option", "day"]) == 1
    assert "--store-option takes NAME=VALUE" in capsys.readouterr().err


def test_a_condition_sees_the_nulls_that_are_shown(url: str, server: Server) -> None:
    create(server)
    insert(server, 1, good=False)
    insert(server, 2, good=True)
    with headrace.open(url, unrepresentable=NULLS) as store:
        table = store.table("t")
        for name in VALUES:
            for operator, row in (("is null", 1), ("is not null", 2)):
                rows = table.scan(["id"], [(name, operator, None)]).read_all()
                assert rows.to_pylist() == [{"id": row}]
        assert table.scan(["id"], [("price", ">", Decimal(0))]).read_all().to_pylist() == [{"id": 2}]
        assert table.scan(["id"], [("day", "!=", datetime.date.min)]).read_all().to_pylist() == [{"id": 2}]


def _texts() -> str:
    return ", ".join(f"{name}::text" for name in VALUES)


def _changes(tunnel: Tunnel) -> list[dict[str, Any]]:
    """Read all once. A consumer may look whether there is more before it reads, and values count each time."""
    rows: list[dict[str, Any]] = []
    for kind in (ChannelKind.BASE_DATA, ChannelKind.STREAM):
        for channel in tunnel.channels():
            if channel.kind is kind:
                rows += tunnel.read(channel.id, channel.committed, 100).changes.rows.to_pylist()
    return rows


def _scan(store: Store) -> dict[int, dict[str, Any]]:
    rows = store.table("t").scan(batch_rows=1).read_all().to_pylist()
    return {row["id"]: {name: row[name] for name in VALUES} for row in rows}


def test_the_option_of_format_headrace(url: str, server: Server) -> None:
    create(server)
    with headrace.open(url) as store:
        store.create_tunnel("t", "changes")
    insert(server, 1, good=False)
    named = {"store": url, "table": "t", "tunnel": "changes"}
    source = HeadraceSource({**named, "unrepresentable": "t.day=text, public.t.until=text, grid=null"})
    kinds = {field.name: str(field.type) for field in source.schema()}
    assert [kinds[name] for name in ("day", "until", "grid")] == [
        "string",
        "string",
        "list<element: int32>",
    ]
    assert HeadraceSource(named).schema().field("day").type == "date32[day]"


@pytest.mark.parametrize("option", ["until", "until=maybe", "{", '["until"]', 7, {"until": 1}, {"": "null"}])
def test_another_form_of_the_option_is_refused(option: str | int | Mapping[str, Any]) -> None:
    with pytest.raises(OptionError, match="option unrepresentable"):
        headrace.open("postgresql://nowhere/none", unrepresentable=option)


def test_any_column_can_be_a_text(url: str, server: Server) -> None:
    server.execute('CREATE TABLE t (id int PRIMARY KEY, "a=b,c" date, big bigint, flag bool, bytes bytea, x float8)')
    with headrace.open(
        url, unrepresentable=dict.fromkeys(("id", "a=b,c", "big", "flag", "bytes", "x"), "text")
    ) as store:
        tunnel = store.create_tunnel("t", "changes")
        server.execute("INSERT INTO t VALUES (1, 'infinity', 5, true, '\\x00ff', 1e-5)")
        row = {"id": "1", "a=b,c": "infinity", "big": "5", "flag": "true", "bytes": "\\x00ff", "x": "1e-05"}
        assert store.table("t").get({"id": "1"}) == row
        (change,) = (
            row for batch in tunnel.consume(client="test", idle="stop") for row in batch.to_arrow().to_pylist()
        )
        assert row.items() <= change.items()
    with headrace.open(url, unrepresentable='{"a=b,c": "text"}') as store:
        assert store.table("t").get({"id": 1}, ["a=b,c"]) == {"a=b,c": "infinity"}


@pytest.mark.parametrize("binary", [True, False])
def test_one_of_several_tables(url: str, server: Server, *, binary: bool) -> None:
    create(server, binary=binary)
    choices = {f"public.t.{name}": "null" for name in VALUES} | {"t.grid": "text"}
    with headrace.open(url, unrepresentable=choices) as store:
        insert(server, 1, good=False)
        tunnel = store.create_tunnel_of_tables("public.*", "changes")
        insert(server, 2, good=False)
        rows = [row for batch in tunnel.consume(client="test", idle="stop") for row in batch.to_arrow().to_pylist()]
        for document in (json.loads(row["row"]) for row in rows):
            assert {name: document[name] for name in VALUES} == {**dict.fromkeys(VALUES), "grid": VALUES["grid"][1]}
        assert len(rows) == 2


def test_base_data_that_was_read_with_another_choice_is_refused(url: str, server: Server) -> None:
    create(server)
    insert(server, 1, good=True)
    with headrace.open(url) as store:
        store.create_tunnel("t", "changes")
    with (
        headrace.open(url, unrepresentable={"day": "text"}) as store,
        pytest.raises(UnsupportedError, match=r"another type of column 'day'.*date.*string.*unrepresentable"),
    ):
        read(store.tunnel("changes"))


def test_base_data_that_was_divided_by_another_type_of_key_is_refused(url: str, server: Server) -> None:
    server.execute("CREATE TABLE big (day date PRIMARY KEY)")
    server.execute("INSERT INTO big SELECT date '1800-01-01' + n FROM generate_series(1, 60000) n")
    server.execute("ANALYZE big")
    with headrace.open(url) as store:
        store.create_tunnel("big", "of_days", base_channels=2)
    with (
        headrace.open(url, unrepresentable={"day": "text"}) as store,
        pytest.raises(UnsupportedError, match=r"divided by keys of another type.*received: datetime.date.*string"),
    ):
        read(store.tunnel("of_days"))
