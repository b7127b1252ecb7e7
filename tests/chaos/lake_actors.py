"""The processes of storms around lake tables.

``python -m tests.chaos.lake_actors driver DIRECTORY QUERY…`` runs some of `QUERIES` over the store of the directory,
into its lake. ``… writer DIRECTORY SEED COLUMNS`` changes rows of the store, and adds columns, at most ``COLUMNS``. ``…
other DIRECTORY SEED`` is another program: it rewrites the files of the lake, deletes replaced files, and appends
and deletes rows with negative keys in table ``copy``, which it writes down in the file ``others``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException

import headrace
from headrace.errors import HeadraceError
from headrace.ports import Store
from headrace_lake.maintenance import LakeStore
from tests.lake import ducklakes, icebergs, lakes
from tests.lake.buckets import URL, TestBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEYS, PARTS = 300, 4
COLUMNS = {"id": "long", "part": "long", "value": "long"}
FIELDS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("part", pa.int64()), ("value", pa.int64())])
TOTALS = {"label": "string", "n": "long", "total": "long"}
_VACUUM_SECONDS = 60
_CONFLICTS = (HeadraceError, DeltaError, CommitFailedException, subprocess.CalledProcessError)


def create(directory: Path, kind: str) -> tuple[Store, LakeStore]:
    """Create the source and the lake, with their tables and tunnels."""
    store = headrace.open(directory / "store", create=True, synchronous="off")
    orders = store.create_table("orders", COLUMNS, "id", pre_images=True)
    parts = store.create_table("parts", {"part": "long", "label": "string"}, "part", pre_images=True)
    orders.put([{"id": number, "part": number % PARTS, "value": number} for number in range(KEYS)])
    parts.put([{"part": number, "label": f"label {number % 3}"} for number in range(PARTS)])
    for table, tunnel in (("orders", "merged"), ("orders", "totals"), ("parts", "totals")):
        store.create_tunnel(table, tunnel)
    where = directory / "lake"
    if kind == "ducklake":
        where.mkdir()
        database = ducklakes.database()
        (where / "database").write_text(database)
        lake = headrace.open(f"ducklake+{database}", create=True, data=str(where / "files"))
    elif kind == "delta":
        lake = headrace.open(f"delta://{where}", create=True)
    elif place := _bucket(directory):
        lake = place.open()
    else:
        if kind == "iceberg in postgres":
            icebergs.use_postgres(where)
        lake = headrace.open(icebergs.url_of(where), create=True, warehouse=str(where))
    assert isinstance(lake, LakeStore)
    lake.create_table("copy", FIELDS, "id", partition_by="part")
    lake.create_table("merged", COLUMNS, "id")
    lake.create_table("totals", TOTALS, "label")
    (directory / "url").write_text(lake.url)
    return store, lake


def opened(directory: Path) -> LakeStore:
    """Return the lake."""
    url = (directory / "url").read_text()
    options: dict[str, Any] = {}
    if url.startswith("iceberg"):
        # A catalog in PostgreSQL does not know it.
        options = {"warehouse": str(directory / "lake")}
    elif place := _bucket(directory):
        options = place.options
    lake = headrace.open(url, **options)
    assert isinstance(lake, LakeStore)
    return lake


def _bucket(directory: Path) -> TestBucket | None:
    """Return the bucket of the lake, if a server is for it."""
    file = directory / "endpoint"
    return TestBucket(URL, file.read_text(), directory / "home") if file.exists() else None


# -- the driver ---------------------------------------------------------------------------------------------------


def _options(directory: Path) -> dict[str, str]:
    """Return the options of Spark for the lake."""
    if (directory / "url").read_text().startswith("iceberg"):
        return {"icebergWarehouse": str(directory / "lake")}
    place = _bucket(directory)
    return {} if place is None else place.spark_options


def _mirror(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    return headrace.mirror(
        spark,
        source=directory / "store",
        table="orders",
        to=(directory / "url").read_text(),
        to_table=name,
        history=name == "versions",
        checkpoint=directory / "checkpoints" / name,
        name=name,
        to_options=_options(directory),
    ).start()


def _changes(spark: SparkSession, directory: Path, tunnel: str, **options: str) -> Any:
    return spark.readStream.format("headrace").options(store=str(directory / "store"), tunnel=tunnel, **options)


def _merge(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    return headrace.merge(
        spark,
        """MERGE INTO merged AS t USING changes AS s ON t.id = s.id
        WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET part = s.part, value = s.value
        WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, part, value) VALUES (s.id, s.part, s.value)""",
        scans={"changes": _changes(spark, directory, name).load("orders")},
        store=(directory / "url").read_text(),
        checkpoint=directory / "checkpoints" / name,
        name=name,
        options=_options(directory),
    ).start()


def _follow(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    return headrace.follow(
        spark,
        "SELECT p.label, count(*) AS n, sum(o.value) AS total FROM orders o JOIN parts p ON o.part = p.part "
        "GROUP BY p.label",
        scans={table: _changes(spark, directory, name, readAs="table").load(table) for table in ("orders", "parts")},
        store=(directory / "url").read_text(),
        table=name,
        checkpoint=directory / "checkpoints" / name,
        name=name,
        options=_options(directory),
    ).start()


QUERIES: Mapping[str, Callable[[SparkSession, Path, str], StreamingQuery]] = {
    "copy": _mirror,
    "versions": _mirror,
    "merged": _merge,
    "totals": _follow,
}


def totals(orders: Iterable[Mapping[str, Any]], parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the result of the followed query, by label."""
    labels = {row["part"]: row["label"] for row in parts}
    found: dict[str, list[int]] = {}
    for row in orders:
        if row["part"] in labels:
            found.setdefault(labels[row["part"]], []).append(row["value"])
    return [{"label": label, "n": len(each), "total": sum(each)} for label, each in sorted(found.items())]


def drive(directory: Path, names: list[str]) -> None:
    from tests.chaos.driving import driver_session, run_until_told

    spark = driver_session()
    run_until_told(directory, spark, [QUERIES[name](spark, directory, name) for name in names])


# -- the source ---------------------------------------------------------------------------------------------------


def change(store: Store, chance: random.Random) -> None:
    """Change rows in one transaction: put, delete, or exchange their values, so that rows move between partitions."""
    orders, parts = store.table("orders"), store.table("parts")
    keys = chance.sample(range(KEYS), chance.choice([1, 5, 40]))
    names = [name for name in orders.schema.names if name not in COLUMNS]
    action = chance.random()
    if action < 0.5:
        orders.put(
            [
                {"id": key, "part": chance.randrange(PARTS), "value": chance.randrange(1000)}
                | {name: str(chance.randrange(100)) for name in names if chance.random() < 0.7}
                for key in keys
            ]
        )
    elif action < 0.7:
        found = [row for row in map(orders.get, ({"id": key} for key in keys)) if row is not None]
        orders.put([row | {"id": other["id"]} for row, other in zip(found, found[1:] + found[:1], strict=True)])
    elif action < 0.9:
        orders.delete([{"id": key} for key in keys])
    else:
        parts.put([{"part": chance.randrange(PARTS), "label": f"label {chance.randrange(3)}"}])


def write(directory: Path, seed: int, columns: int) -> None:
    # A restarted writer makes other changes.
    chance = random.Random(seed + os.getpid())
    store = headrace.open(directory / "store", synchronous="off")
    while not (directory / "stop").exists():
        change(store, chance)
        names = store.table("orders").schema.names
        if len(names) < len(COLUMNS) + columns and chance.random() < 0.02:
            store.table("orders").add_columns({f"c{len(names)}": "string"})
        time.sleep(chance.uniform(0.01, 0.1))


# -- another program ----------------------------------------------------------------------------------------------


def interfere(directory: Path, seed: int) -> None:
    chance = random.Random(seed + os.getpid())
    lake = opened(directory)
    actions = _ACTIONS[lake.url.partition(":")[0].partition("+")[0]]
    log = os.open(directory / "others", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, keys: list[int]) -> None:
        # A kill can leave an incomplete line, so each line begins with a line break.
        os.write(log, b"\n" + json.dumps([what, keys]).encode())

    first = -time.time_ns() // 1_000_000
    appended: list[int] = []
    while not (directory / "stop").exists():
        action = chance.choice([*actions, "rewrite", "rewrite"])
        time.sleep(chance.uniform(0.05, 0.5))
        if action not in ("append", "delete"):
            rewrite(directory, lake, chance)
            continue
        # It gives way to another commit.
        with suppress(*_CONFLICTS):
            if action == "append":
                keys = [first - number for number in range(3)]
                first -= len(keys)
                note("appending", keys)
                actions[action](directory / "lake", "copy", keys)
                note("appended", keys)
                appended += keys
            else:
                keys, appended = appended[:2], appended[2:]
                if keys:
                    note("deleting", keys)
                    actions[action](directory / "lake", "copy", keys)
                    note("deleted", keys)


def rewrite(directory: Path, lake: LakeStore, chance: random.Random) -> None:
    """Rewrite or delete files of a table once, in one of the ways of this program."""
    actions = _ACTIONS[lake.url.partition(":")[0].partition("+")[0]]
    action = chance.choice([*(actions.keys() - {"append", "delete"}), "compact", "vacuum"])
    table = chance.choice(lake.lake_tables())
    with suppress(*_CONFLICTS):
        if action == "compact":
            lake.maintenance(table).compact(chance.choice([1 << 14, 1 << 20]))
        elif action == "vacuum":
            lake.maintenance(table).vacuum(_VACUUM_SECONDS)
        else:
            actions[action](directory / "lake", table, [])


Action = Callable[[Path, str, list[int]], object]


def _rows(keys: list[int]) -> pa.Table:
    return pa.Table.from_pylist([{"id": key, "part": key % PARTS, "value": key} for key in keys], FIELDS)


def _condition(keys: list[int]) -> str:
    return f"id IN ({', '.join(map(str, keys))})"


def _delta(where: Path, table: str) -> DeltaTable:
    place = _bucket(where.parent)
    return lakes.foreign(where, table) if place is None else place.foreign(table)


def _append_to_delta(where: Path, table: str, keys: list[int]) -> None:
    write_deltalake(_delta(where, table), _rows(keys), mode="append", schema_mode="merge")


def _append_to_iceberg(where: Path, table: str, keys: list[int]) -> None:
    found = icebergs.foreign(where, table)
    rows = _rows(keys)
    for field in found.schema().as_arrow():
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(len(rows), field.type))
    found.append(rows)


def _append_to_ducklake(where: Path, table: str, keys: list[int]) -> None:
    rows = ", ".join(f"({key}, {key % PARTS}, {key})" for key in keys)
    _duckdb(where, f"INSERT INTO lake.main.{table} (id, part, value) VALUES {rows}")


def _duckdb(where: Path, statement: str) -> list[list[Any]]:
    return ducklakes.referee((where / "database").read_text(), where, statement)[0]


_ACTIONS: Mapping[str, Mapping[str, Action]] = {
    "delta": {
        "append": _append_to_delta,
        "delete": lambda where, table, keys: _delta(where, table).delete(_condition(keys)),
        "optimize": lambda where, table, _: _delta(where, table).optimize.compact(),
        "clean": lambda where, table, _: _delta(where, table).vacuum(
            0, dry_run=False, enforce_retention_duration=False
        ),
    },
    "iceberg": {
        "append": _append_to_iceberg,
        "delete": lambda where, table, keys: icebergs.foreign(where, table).delete(_condition(keys)),
    },
    "ducklake": {
        "append": _append_to_ducklake,
        "delete": lambda where, table, keys: _duckdb(where, f"DELETE FROM lake.main.{table} WHERE {_condition(keys)}"),
        "merge": lambda where, _, __: _duckdb(where, "CALL ducklake_merge_adjacent_files('lake')"),
        "expire": lambda where, _, __: _duckdb(
            where, "CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL 20 SECONDS)"
        ),
        "clean": lambda where, _, __: _duckdb(where, "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"),
    },
}


def read(where: Path, url: str, table: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows as delta-rs, pyiceberg or DuckDB reads them."""
    if url.startswith("delta"):
        query = QueryBuilder().register("t", _delta(where, table)).execute("SELECT * FROM t")
        return pa.table(query.read_all()).select(names).to_pylist()  # type: ignore[no-any-return]
    if url.startswith("iceberg"):
        return icebergs.foreign(where, table).scan().to_arrow().select(names).to_pylist()  # type: ignore[no-any-return]
    rows = _duckdb(where, f"SELECT {', '.join(names)} FROM lake.main.{table}")
    return [dict(zip(names, row, strict=True)) for row in rows]


if __name__ == "__main__":
    role, place = sys.argv[1], Path(sys.argv[2])
    if role == "driver":
        drive(place, sys.argv[3:])
    elif role == "writer":
        write(place, *map(int, sys.argv[3:]))
    else:
        interfere(place, int(sys.argv[3]))
