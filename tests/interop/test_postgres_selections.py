"""What a tunnel leaves out of a table of PostgreSQL: columns, rows and, by masks, values."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import DataLossError, HeadraceError, OptionError, SchemaError, UnsupportedError
from headrace.model.tunnels.masks import Mask
from headrace.model.tunnels.values import TunnelKind
from headrace.monitoring.process_metrics import StoreCollector
from headrace.ports import Store, Tunnel
from headrace.stores.postgres.tunnels import selections
from headrace.testing.effort import thorough
from headrace.testing.reading import State, drain, replay
from headrace.ui.server import UiThread
from tests.interop.masked_tables import MaskedTable
from tests.interop.own_database import Server
from tests.postgres_server import needs_version
from tests.ui.conftest import Browser

pytestmark = needs_version(15)
KEY = "a secret of sixteen bytes or more"
_ROWS = "INSERT INTO people SELECT i, 'name' || i, i || '@mail', 'note' || i, i, now() FROM generate_series(1, 6) i"


@pytest.fixture
def store(url: str, server: Server) -> Iterator[Store]:
    server.execute(
        "CREATE TABLE people (id int PRIMARY KEY, name text NOT NULL, mail text, note text, age int, at timestamptz)"
    )
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def rows(server: Server, query: str) -> State:
    with server.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return {(row["id"],): row for row in cursor.execute(query)}


def hashed(text: str) -> object:
    return Mask("hash").applied(pa.array([text]), KEY.encode())[0].as_py()


def test_base_data_and_changes_are_those_of_the_choice(store: Store, server: Server) -> None:
    server.execute(_ROWS)
    tunnel = store.create_tunnel(
        "people",
        "odd",
        exclude=["note", "at"],
        where="id % 2 = 1",
        mask={"mail": "hash", "name": "first(5)", "age": "null"},
        mask_key=KEY,
    )
    assert tunnel.table.schema.names == ("id", "name", "mail", "age")
    state = replay(drain(tunnel))
    assert state[3,] == {"id": 3, "name": "name3", "mail": hashed("3@mail"), "age": None}
    server.execute("INSERT INTO people VALUES (7, 'seventh', '7@mail'), (8, 'eighth', '8@mail')")
    server.execute("UPDATE people SET mail = '3@mail', note = 'x' WHERE id = 1; DELETE FROM people WHERE id = 3")
    # Into the choice, within it, and out of it.
    server.execute("UPDATE people SET id = 11 WHERE id = 2; UPDATE people SET id = 13 WHERE id = 5")
    server.execute("UPDATE people SET id = 20 WHERE id = 7")
    state = replay(drain(tunnel), state)
    expected = rows(server, "SELECT id, left(name, 5) AS name, mail, NULL AS age FROM people WHERE id % 2 = 1")
    assert state == {key: {**row, "mail": hashed(row["mail"])} for key, row in expected.items()}
    details = tunnel.describe().details
    assert details["columns"] == "id, name, mail, age"
    assert details["where"] == "((id % 2) = 1)"
    assert details["masks"] == "mail: hash, name: first(5), age: null"
    assert KEY not in str(tunnel.describe())


def test_masks_hide_old_rows_too_and_need_no_values(store: Store, server: Server) -> None:
    server.execute("ALTER TABLE people REPLICA IDENTITY FULL; ALTER TABLE people ADD big text")
    tunnel = store.create_tunnel(
        "people", "masked", mask={"mail": "last(4)", "note": "constant(hidden)", "at": "null"}, where="age > 10"
    )
    server.execute("INSERT INTO people VALUES (1, 'a', '1@mail', 'x', 20, 'infinity')")
    server.execute("UPDATE people SET age = 30; UPDATE people SET age = 5; UPDATE people SET age = 40")
    found = [(change.op.name, change.row) for change in drain(tunnel)]
    assert [name for name, _ in found] == ["INSERT", "PREIMAGE", "REPLACE", "DELETE_WITH_ROW", "INSERT"]
    row = {"id": 1, "name": "a", "mail": "mail", "note": "hidden", "at": None, "big": None}
    assert [each for _, each in found] == [{**row, "age": age} for age in (20, 20, 30, 30, 40)]


def test_the_choice_follows_the_columns_and_not_their_names(store: Store, server: Server) -> None:
    server.execute(_ROWS)
    tunnel = store.create_tunnel("people", "some", columns="id,name", where="id < 5", mask={"name": "last(1)"})
    state = replay(drain(tunnel))
    # None of these concerns the tunnel.
    server.execute("ALTER TABLE people ALTER age TYPE text USING 'x' || age; ALTER TABLE people DROP at, DROP mail")
    server.execute("ALTER TABLE people ADD mail int DEFAULT 5")
    assert drain(tunnel) == []
    server.execute("INSERT INTO people (id, name) VALUES (0, 'zero')")
    server.execute("ALTER TABLE people RENAME name TO called; ALTER TABLE people RENAME note TO name")
    server.execute("ALTER TABLE people RENAME id TO number; UPDATE people SET called = 'one' WHERE number = 1")
    changes = drain(tunnel)
    assert [change.row for change in changes] == [{"number": 0, "called": "o"}, {"number": 1, "called": "e"}]
    assert len(state) == 4
    assert tunnel.describe().details["where"] == "(number < 5)"
    assert store.create_tunnel("people", "base", "BaseData", columns=["number"]).table.schema.names == ("number",)


@pytest.mark.parametrize("shown", ["hash", "null", "last(1)", "constant(x)"])
def test_a_column_with_the_name_of_a_masked_one_is_masked(store: Store, server: Server, shown: str) -> None:
    server.execute(_ROWS)
    read, unread, base = (
        store.create_tunnel("people", str(kind), kind, mask={"mail": shown})
        for kind in (TunnelKind.STREAM, TunnelKind.BASE_AND_STREAM, TunnelKind.BASE_DATA)
    )
    assert drain(read) == []
    # The usual migration of a column, whose new one has a default value for older rows.
    server.execute("ALTER TABLE people RENAME mail TO old_mail")
    assert {each.describe().details["masks"] for each in (read, unread, base)} == {f"old_mail: {shown}"}
    server.execute("ALTER TABLE people ADD post text DEFAULT '0@mail'")
    server.execute("UPDATE people SET post = old_mail; ALTER TABLE people DROP old_mail")
    server.execute("ALTER TABLE people RENAME post TO old_mail; ALTER TABLE people ADD mail text DEFAULT '0@mail'")
    server.execute("INSERT INTO people (id, name) VALUES (7, 'g')")
    server.execute("INSERT INTO people (id, name, mail, old_mail) VALUES (8, 'h', '8@mail', '8@mail')")
    found: list[Any] = []
    for tunnel in (read, unread, base):
        for batch in tunnel.consume(idle="stop", timeout=1, fail_on_data_loss=False):
            found += batch.to_arrow().to_pylist()
        assert tunnel.describe().details["masks"] == f"old_mail: {shown}, mail: {shown}"
    server.execute("UPDATE people SET mail = '9@mail', old_mail = '9@mail'")
    found += [*drain(read), *drain(unread)]
    assert len(found) >= 2 * (2 + 8)
    assert "@mail" not in str(found)
    with server.cursor() as cursor:
        assert "@mail" not in str(cursor.execute("SELECT content FROM headrace.definition").fetchall())


def test_a_key_with_the_name_of_a_masked_column_is_refused(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("people", "masked", mask={"mail": "hash"})
    server.execute("ALTER TABLE people DROP mail; ALTER TABLE people RENAME id TO mail")
    server.execute("INSERT INTO people (mail, name) VALUES (1, 'a')")
    with pytest.raises(UnsupportedError, match="primary key has the name of a masked column"):
        drain(tunnel)


@pytest.mark.parametrize(
    ("options", "identity", "kept"),
    [
        ({"exclude": "note"}, "DEFAULT", True),
        ({"where": "age > 3"}, "FULL", True),
        ({"mask": {"age": "hash"}}, "FULL", False),
    ],
)
def test_the_server_keeps_the_columns_of_lists_and_filters(
    store: Store, server: Server, options: dict[str, Any], identity: str, kept: bool
) -> None:
    server.execute(f"{_ROWS}; ALTER TABLE people REPLICA IDENTITY {identity}")
    tunnel = store.create_tunnel("people", "some", **options)
    people, used = store.table("people"), f"publication headrace_{tunnel.id} depends on column"
    with pytest.raises(UnsupportedError, match=used) if kept else nullcontext():
        people.widen_column("age", "long")
    with pytest.raises(UnsupportedError, match=used) if kept else nullcontext():
        people.drop_columns(["age"])
    drain(tunnel)
    if kept:
        server.execute("ALTER TABLE people DROP age CASCADE")
        with pytest.raises(DataLossError, match="publication of tunnel 'some' does not have table 'people'"):
            drain(tunnel)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"columns": ["name"]}, OptionError, "needs the columns of the primary key.*add id"),
        ({"exclude": "id"}, OptionError, "remove id from option exclude"),
        ({"columns": ["id", "nmae"]}, SchemaError, "option columns names columns.*'nmae'.*valid: id, name"),
        ({"exclude": ["Name"]}, SchemaError, "option exclude names columns"),
        ({"columns": ["id"], "exclude": ["name"]}, OptionError, "contradict"),
        ({"columns": []}, OptionError, "must be names"),
        ({"mask": {"id": "hash"}}, OptionError, "in the primary key"),
        ({"mask": {"x": "hash"}}, SchemaError, "option mask names columns"),
        ({"mask": {"note": "hash"}, "exclude": ["note"]}, OptionError, "has no effect"),
        ({"mask": {"at": "hash"}}, OptionError, "mask hash does not fit column 'at'"),
        ({"mask": {"note": "null"}, "mask_key": KEY}, OptionError, "for masks of kind hash"),
        ({"mask": {"note": "hash"}, "mask_key": "short"}, OptionError, "secret text(?!.*short)"),
        ({"where": "age > 3"}, UnsupportedError, "refuse updates and deletes.*a filter with age.*columns of the pri"),
        ({"where": "nothing = 3"}, OptionError, "nothing = 3.*the server says: column .nothing. does not exist"),
        ({"where": "id > random()"}, OptionError, "invalid publication WHERE expression"),
        ({"where": "true); DROP TABLE people; --"}, OptionError, "syntax error"),
        ({"where": "true) WITH (publish = 'insert'"}, OptionError, "syntax error"),
        ({"where": " "}, OptionError, "must be a condition"),
        ({"where": "name = '\0'"}, OptionError, "option where has a text.*valid: a text without NUL"),
        ({"where": "name = '\ud800'"}, OptionError, r"option where has a text.*received: .*\\ud800"),
        ({"columns": ["id", "\ud800"]}, OptionError, "option columns has a text"),
        ({"mask": {"note": "constant(\0)"}}, OptionError, "option mask has a text"),
        ({"slot": "a\0b", "publication": "p"}, OptionError, "option slot has a text"),
        ({"mask": {"note": "null"}, "mask_key": "\ud800"}, OptionError, "secret text"),
        ({"where": "id > 3", "kind": "BaseData"}, UnsupportedError, "kind BaseAndStream or Stream"),
    ],
)
def test_a_choice_that_cannot_be_exact_is_refused_and_leaves_nothing(
    store: Store, server: Server, options: dict[str, Any], error: type[HeadraceError], message: str
) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        store.create_tunnel("people", "some", **options)
    assert store.tunnels() == []
    assert server.execute("SELECT pubname FROM pg_publication").fetchall() == []
    server.execute(_ROWS)
    server.execute("UPDATE people SET age = 1")


@pytest.mark.parametrize(
    "further", ["public.keyless WHERE (true", "TABLES IN SCHEMA sales, TABLE public.keyless WHERE (true"]
)
def test_a_condition_publishes_no_further_tables(store: Store, server: Server, further: str) -> None:
    server.execute("CREATE TABLE keyless (n int); INSERT INTO keyless VALUES (1); CREATE SCHEMA sales")
    with pytest.raises(OptionError, match=r"(?s)by option where.*each parenthesis with its other one"):
        store.create_tunnel("people", "some", where=f"id > 0), {further}")
    assert store.tunnels() == []
    assert server.execute("SELECT pubname FROM pg_publication").fetchall() == []
    # The server would refuse updates of a table without a key that is published.
    server.execute("UPDATE keyless SET n = 2")


def test_a_filter_that_fails_for_a_change_is_named_and_hides_no_other_tunnel(store: Store, server: Server) -> None:
    server.execute("INSERT INTO people (id, name) VALUES (1, 'one')")
    store.create_tunnel("people", "all")
    tunnel = store.create_tunnel("people", "some", where="1000 / id > 10")
    assert [change.key for change in drain(tunnel)] == [(1,)]
    server.execute("INSERT INTO people (id, name) VALUES (0, 'zero')")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"cannot decode a change.*received: division by zero; create a new"):
            drain(tunnel)
    described = {each.name: each.describe() for each in store.tunnels()}
    assert "UnsupportedError: the server cannot decode a change" in str(described["some"].details["last_error"])
    assert described["all"].warnings == ()
    assert [each.found for each in store.diagnose() if each.name.endswith("tunnel some of people")]
    store.drop_tunnel("some")


def test_a_filter_that_fails_for_a_row_of_base_data_is_named(store: Store, server: Server) -> None:
    server.execute("INSERT INTO people (id, name) SELECT i, 'a' FROM generate_series(0, 60000) i")
    tunnel = store.create_tunnel("people", "large", where="1000 / id > 10")
    error = r"filter of rows of a tunnel fails.*'people'; received: division by zero; .*option where"
    with pytest.raises(UnsupportedError, match=error):
        drain(tunnel)
    # Small tables are read when the tunnel is created.
    server.execute("DELETE FROM people WHERE id > 10")
    with pytest.raises(UnsupportedError, match=error):
        store.create_tunnel("people", "small", where="1000 / id > 10")
    assert [each.name for each in store.tunnels()] == ["large"]


def test_a_mask_that_no_longer_fits_is_named_and_the_tunnel_can_be_dropped(store: Store, server: Server) -> None:
    tunnel = store.create_tunnel("people", "some", mask={"note": "first(2)"})
    server.execute("ALTER TABLE people ALTER note TYPE int USING 5; INSERT INTO people (id, name) VALUES (1, 'one')")
    with pytest.raises(UnsupportedError, match=r"mask first does not fit column 'note' any more.*received: int;"):
        drain(tunnel)
    assert "mask first does not fit column 'note' any more" in " ".join(tunnel.describe().warnings)
    assert main(["tunnel", "drop", "some", "-s", store.url]) == 0


def test_an_old_server_is_named_and_has_masks(store: Store, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "_LISTS_VERSION", 1_000_000)
    for options in ({"columns": ["id"]}, {"exclude": ["note"]}, {"where": "id > 3"}):
        with pytest.raises(UnsupportedError, match=r"PostgreSQL 15 and later.*option mask works"):
            store.create_tunnel("people", "some", **options)
    server.execute(_ROWS)
    tunnel = store.create_tunnel("people", "some", mask={"mail": "constant(x)"})
    assert {change.row["mail"] for change in drain(tunnel)} == {"x"}


def test_a_choice_and_old_rows_exclude_each_other_before_the_server_refuses_updates(
    store: Store, server: Server
) -> None:
    server.execute(_ROWS)
    tunnel = store.create_tunnel("people", "some", columns=["id", "name"])
    with pytest.raises(UnsupportedError, match=f"(?s)refuse updates.*headrace_{tunnel.id}"):
        store.table("people").set_options(pre_images=True)
    server.execute("UPDATE people SET age = 1")
    store.drop_tunnel("some")
    store.table("people").set_options(pre_images=True)
    with pytest.raises(UnsupportedError, match="needs all columns"):
        store.create_tunnel("people", "some", exclude=["name"])
    store.create_tunnel("people", "filtered", where="age > 3")
    with pytest.raises(UnsupportedError, match="a filter of rows"):
        store.table("people").set_options(pre_images=False)


def test_the_list_and_the_filter_of_an_existing_publication_are_the_choice(store: Store, server: Server) -> None:
    server.execute(_ROWS)
    server.execute("CREATE PUBLICATION shop FOR TABLE people (id, name, mail) WHERE (id > 3)")
    with pytest.raises(OptionError, match="chooses the columns and rows"):
        store.create_tunnel("people", "some", publication="shop", columns=["id"])
    tunnel = store.create_tunnel("people", "some", publication="shop", mask={"mail": "last(4)"})
    state = replay(drain(tunnel))
    server.execute("UPDATE people SET name = 'x'; DELETE FROM people WHERE id IN (1, 5)")
    state = replay(drain(tunnel), state)
    assert state == rows(server, "SELECT id, name, 'mail' AS mail FROM people WHERE id > 3")
    server.execute("ALTER PUBLICATION shop SET TABLE people (id, name, mail) WHERE (id > 4)")
    server.execute("INSERT INTO people (id, name) VALUES (9, 'x')")
    with pytest.raises(DataLossError, match=r"publication .* was changed"):
        drain(tunnel)


@pytest.mark.parametrize("change", ["SET TABLE people", "SET TABLE people WHERE (id > 0)", "DROP TABLE people"])
def test_base_data_is_not_read_by_a_publication_that_others_have_changed(
    store: Store, server: Server, change: str
) -> None:
    server.execute("INSERT INTO people SELECT i, 'n' FROM generate_series(1, 60000) i")
    tunnel = store.create_tunnel("people", "few", where="id > 59990")
    server.execute(f"ALTER PUBLICATION headrace_{tunnel.id} {change}")
    with pytest.raises(DataLossError, match="publication"):
        drain(tunnel)
    assert server.execute("SELECT count(*) FROM headrace.spool").fetchone() == (0,)


def test_partitions_obey_the_choice_of_their_table(store: Store, server: Server) -> None:
    server.execute(
        "CREATE TABLE parted (note text, id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high (id int NOT NULL, v int, note text);"
        "ALTER TABLE parted ATTACH PARTITION high FOR VALUES FROM (10) TO (20);"
        "INSERT INTO parted SELECT 'x', i, i FROM generate_series(0, 19) i"
    )
    tunnel = store.create_tunnel("parted", "some", exclude="note", where="id % 3 = 0", mask={"v": "constant(0)"})
    state = replay(drain(tunnel))
    server.execute("UPDATE parted SET id = 12 + id % 8, v = 5 WHERE id IN (1, 2) AND false")
    server.execute("DELETE FROM parted WHERE id IN (15, 16); UPDATE parted SET id = 15 WHERE id = 3")
    state = replay(drain(tunnel), state)
    assert state == rows(server, "SELECT id, 0 AS v FROM parted WHERE id % 3 = 0")


def test_generated_columns_can_be_left_out(store: Store, server: Server) -> None:
    server.execute("CREATE TABLE sums (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED)")
    tunnel = store.create_tunnel("sums", "some", exclude="b")
    server.execute("INSERT INTO sums VALUES (1, 2)")
    assert [change.row for change in drain(tunnel)] == [{"id": 1, "a": 2}]


def test_commands_create_and_show_the_choice(store: Store, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.execute(_ROWS)
    arguments = ["--columns", "id, name", "--where", "id > 2", "--mask", "name=last(1)"]
    assert main(["tunnel", "create", "people", "some", *arguments, "-s", store.url]) == 0
    for bad in (["name"], ["name=hash", "--mask", "name=null"]):
        assert main(["tunnel", "create", "people", "bad", "--mask", *bad, "-s", store.url]) == 1
    errors = capsys.readouterr().err
    assert "option --mask takes NAME=VALUE; received: 'name'" in errors
    assert "option --mask has a name twice; received: 'name'" in errors
    assert main(["tunnel", "describe", "some", "-s", store.url, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [shown[name] for name in ("columns", "where", "masks")] == ["id, name", "(id > 2)", "name: last(1)"]
    assert main(["tunnel", "tail", "some", "--no-follow", "-s", store.url, "--json"]) == 0
    assert [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()] == ["3", "4", "5", "6"]
    assert main(["tunnel", "create", "--tables", "public.*", "all", "--exclude", "note", "-s", store.url]) == 1
    assert "a tunnel of several tables has all their columns" in capsys.readouterr().err


def everything(server: Server, store: Store, tunnel: Tunnel, tmp_path: Path) -> str:
    """Return all that headrace keeps and shows of a tunnel."""
    found = io.StringIO()
    tables = server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'headrace'").fetchall()
    for (name,) in tables:
        # The key of hashes is kept here alone.
        content = "regexp_replace(t::text, '[0-9a-f]{32,}', '', 'g')" if name == "selection" else "t::text"
        print(server.execute(f"SELECT {content} FROM headrace.{name} t".encode()).fetchall(), file=found)
    for (content,) in server.execute("SELECT content FROM headrace.spool"):
        print(pa.ipc.open_stream(content).read_all().to_pylist(), file=found)
    print(server.execute("SELECT * FROM pg_publication_tables").fetchall(), file=found)
    print(tunnel.describe(), list(StoreCollector(store).collect()), file=found)
    page = UiThread(store, tmp_path, 0)
    try:
        for path in (f"/tunnel?id={tunnel.id}", f"/tunnel/changes?id={tunnel.id}", "/tunnels", "/"):
            print(Browser(page.address).get(path).text, file=found)
    finally:
        page.stop()
    return found.getvalue()


@pytest.mark.parametrize("seed", range(thorough(10)))
def test_values_that_are_left_out_or_masked_appear_nowhere(
    store: Store, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
    seed: int,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    masked = MaskedTable(server, store, seed)
    seen = [everything(server, store, masked.tunnel, tmp_path)]
    for _ in range(12):
        masked.change()
        try:
            seen.append(str(drain(masked.tunnel)))
        except HeadraceError as error:
            seen.append(repr(error) + str(error))
            break
    for command in ("describe", "tail"):
        main(["tunnel", command, "f", "-s", store.url, *(["--no-follow"] if command == "tail" else [])])
    seen += [everything(server, store, masked.tunnel, tmp_path), caplog.text, *capsys.readouterr()]
    for text in seen:
        assert not [secret for secret in masked.secrets if secret in text]
