"""A shop as a star schema: eight kept views over six tables that change, compared with the batch answer in each round.

The tables are like those of TPC-H, small, and made by the example. Each view is a stream of SQL. A round inserts,
changes and deletes rows of all tables; then each target has the rows that DuckDB computes for the same SELECT over the
tables. Run it with ``python examples/shop/run.py [DIRECTORY] [--rounds 3] [--ui]``. With ``--ui`` a web page shows the
views while they change, and rounds go on until Ctrl+C.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

import headrace

MONEY, TOTAL = "decimal(10,2)", "decimal(20,4)"
TABLES = {
    "nations": ({"id": "long", "name": "string", "region": "string"}, "id"),
    "customers": ({"id": "long", "name": "string", "nation": "long"}, "id"),
    "suppliers": ({"id": "long", "name": "string", "nation": "long"}, "id"),
    "products": ({"id": "long", "name": "string", "brand": "string"}, "id"),
    "orders": ({"id": "long", "customer": "long", "day": "date", "status": "string"}, "id"),
    "items": (
        {"ord": "long", "line": "long", "product": "long", "supplier": "long", "quantity": "long", "price": MONEY},
        ["ord", "line"],
    ),
}


@dataclass(frozen=True)
class View:
    """A SELECT over the tables whose names are in braces, and the table that keeps its result."""

    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    sql: str

    @property
    def reads(self) -> list[str]:
        return [table for table in TABLES if f"{{{table}}}" in self.sql]

    def statements(self) -> Iterator[str]:
        """Yield the statements that keep the view. Each stream has tunnels and scans of its own."""
        for table in self.reads:
            yield f"CREATE TUNNEL {self.name} ON {table}"
            options = f"tunnel = '{self.name}', readAs = 'table'"
            yield f"CREATE SCAN {self.name}_{table} ON {table} USING STREAM OPTIONS ({options})"
        scans = {table: f"{self.name}_{table}" for table in self.reads}
        yield f"CREATE STREAM {self.name} INSERT INTO {self.name} {self.sql.format(**scans)}"

    def batch(self) -> str:
        """Return the same SELECT over the tables."""
        return self.sql.format(**{table: table for table in self.reads})


VIEWS = (
    # A fact with its dimensions.
    View(
        "revenue",
        {"nation": "string", "items": "long", "revenue": TOTAL},
        ("nation",),
        f"""SELECT n.name AS nation, count(*) AS items, CAST(sum(i.quantity * i.price) AS {TOTAL}) AS revenue
        FROM {{items}} i JOIN {{orders}} o ON o.id = i.ord JOIN {{customers}} c ON c.id = o.customer
        JOIN {{nations}} n ON n.id = c.nation GROUP BY n.name""",
    ),
    View(
        "open_orders",
        {"id": "long", "day": "date", "customer": "string", "total": TOTAL},
        ("id",),
        f"""SELECT o.id, o.day, c.name AS customer, CAST(sum(i.quantity * i.price) AS {TOTAL}) AS total
        FROM {{orders}} o JOIN {{customers}} c ON c.id = o.customer JOIN {{items}} i ON i.ord = o.id
        WHERE o.status = 'open' GROUP BY o.id, o.day, c.name""",
    ),
    # The latest of each.
    View(
        "latest_orders",
        {"customer": "long", "place": "int", "id": "long", "day": "date", "name": "string"},
        ("customer", "place"),
        """SELECT customer, place, id, day, name FROM (
            SELECT o.customer, o.id, o.day, c.name,
            row_number() OVER (PARTITION BY o.customer ORDER BY o.day DESC, o.id) AS place
            FROM {orders} o JOIN {customers} c ON c.id = o.customer
        ) latest WHERE place <= 3""",
    ),
    # Who has none.
    View(
        "without_orders",
        {"id": "long", "name": "string", "nation": "string"},
        ("id",),
        """SELECT c.id, c.name, n.name AS nation FROM {customers} c LEFT JOIN {nations} n ON n.id = c.nation
        WHERE NOT EXISTS (SELECT * FROM {orders} o WHERE o.customer = c.id)""",
    ),
    # Totals of totals.
    View(
        "order_counts",
        {"orders": "long", "customers": "long"},
        ("orders",),
        """SELECT orders, count(*) AS customers FROM (
            SELECT c.id, count(o.id) AS orders
            FROM {customers} c LEFT JOIN {orders} o ON o.customer = c.id GROUP BY c.id
        ) counts GROUP BY orders""",
    ),
    # The best of each: a rank over totals.
    View(
        "best_products",
        {"brand": "string", "id": "long", "place": "int", "sold": "long"},
        ("brand", "id"),
        """SELECT brand, id, place, sold FROM (
            SELECT p.brand, p.id, t.sold, rank() OVER (PARTITION BY p.brand ORDER BY t.sold DESC) AS place
            FROM {products} p JOIN (
                SELECT product, sum(quantity) AS sold FROM {items} GROUP BY product
            ) t ON t.product = p.id
        ) ranks WHERE place <= 2""",
    ),
    # Compared with others: a correlated subquery.
    View(
        "small_items",
        {"ord": "long", "line": "long", "name": "string", "quantity": "long"},
        ("ord", "line"),
        """SELECT i.ord, i.line, p.name, i.quantity FROM {items} i JOIN {products} p ON p.id = i.product
        WHERE i.quantity * 5 < (SELECT avg(j.quantity) FROM {items} j WHERE j.product = i.product)""",
    ),
    # Also those without: an outer join with distinct values.
    View(
        "supplier_reach",
        {"id": "long", "name": "string", "customers": "long", "first": "date", "last": "date"},
        ("id",),
        """SELECT s.id, s.name, count(DISTINCT o.customer) AS customers, min(o.day) AS first, max(o.day) AS last
        FROM {suppliers} s LEFT JOIN {items} i ON i.supplier = s.id LEFT JOIN {orders} o ON o.id = i.ord
        GROUP BY s.id, s.name""",
    ),
)


class Shop:
    """The six tables, their first rows, and random changes of them."""

    def __init__(self, store: headrace.Store, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._tables = {
            name: store.create_table(name, columns, key, pre_images=True) for name, (columns, key) in TABLES.items()
        }
        self._orders = 0
        regions = ["Africa", "America", "Asia", "Europe"]
        self._put("nations", [{"id": n, "name": f"Nation {n}", "region": regions[n % 4]} for n in range(10)])
        self._put("customers", [self._customer(n) for n in range(60)])
        self._put("suppliers", [self._supplier(n) for n in range(8)])
        self._put("products", [self._product(n) for n in range(40)])
        self._order(200)

    def change(self) -> None:
        """Change rows of all tables."""
        pick, orders = self._random.randrange, self._tables["orders"]
        self._order(12)
        for number in {pick(self._orders) for _ in range(4)}:
            orders.delete({"id": number})
            self._tables["items"].delete([{"ord": number, "line": line} for line in range(5)])
        known = orders.scan(["id"]).read_all().column("id").to_pylist()
        orders.update([{"id": number, "status": "shipped"} for number in self._random.sample(known, 8)])
        self._put("customers", [self._customer(pick(64)) for _ in range(4)])
        self._tables["customers"].delete({"id": pick(64)})
        self._put("products", [self._product(pick(40)) for _ in range(2)])
        self._put("suppliers", [self._supplier(pick(8))])
        self._tables["nations"].update({"id": pick(10), "name": f"Nation {pick(10)}"})

    def _put(self, table: str, rows: list[dict[str, Any]]) -> None:
        self._tables[table].put(rows)

    def _customer(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"Customer {number}", "nation": self._random.choice([None, *range(10)])}

    def _supplier(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"Supplier {number}", "nation": self._random.randrange(10)}

    def _product(self, number: int) -> dict[str, Any]:
        return {"id": number, "name": f"Product {number}", "brand": f"Brand {self._random.randrange(6)}"}

    def _order(self, count: int) -> None:
        """Insert orders with their items. Some customers never order."""
        orders, items = [], []
        for _ in range(count):
            self._orders += 1
            day = date(2026, 1, 1) + timedelta(days=self._random.randrange(120))
            status = self._random.choice(["open", "paid"])
            orders.append({"id": self._orders, "customer": self._random.randrange(50), "day": day, "status": status})
            items += [self._item(line) for line in range(self._random.randrange(1, 6))]
        self._put("orders", orders)
        self._put("items", items)

    def _item(self, line: int) -> dict[str, Any]:
        pick = self._random.randrange
        item = {"ord": self._orders, "line": line, "product": pick(40), "supplier": pick(7)}
        return item | {"quantity": 1 + pick(50) ** 2 // 50, "price": Decimal(pick(100, 10_000)) / 100}


def start(store: headrace.Store, streams: headrace.StreamingSql, views: Sequence[View] = VIEWS) -> None:
    """Define the tables and views in SQL, and start a stream for each view."""
    for view in views:
        store.create_table(view.name, view.columns, list(view.key))
    for name in (*TABLES, *(view.name for view in views)):
        streams.run(f"CREATE TABLE {name} USING headrace OPTIONS (store = '{store.url}', table = '{name}')")
    for view in views:
        streams.run(";\n".join(view.statements()))


def settle(streams: headrace.StreamingSql, count: int) -> None:
    """Wait until a number of streams have read all changes.

    On a busy machine, a stream can fail because its Python processes start too slowly, and is then started again.
    """
    spark, settled = streams.spark, False
    while not settled:
        streams.wait(0.2, fail_fast=True)
        active = spark.streams.active
        settled = len(active) == count
        for query in active:
            try:
                query.processAllAvailable()
            except StreamingQueryException:
                settled = False


def compare(store: headrace.Store, before: dict[str, set[tuple[Any, ...]]], views: Sequence[View] = VIEWS) -> bool:
    """Compare each view with DuckDB's answer over the tables, and print how many rows changed since the last call."""
    equal = True
    for view in views:
        kept = {tuple(row.values()) for row in store.table(view.name).scan(list(view.columns)).read_all().to_pylist()}
        answer = {tuple(row.values()) for row in store.query(view.batch()).to_pylist()}
        changed = len(kept - before.get(view.name, set()))
        before[view.name] = kept
        print(f"  {view.name:15}{len(kept):5} rows{changed:5} new {'equal' if kept == answer else 'DIFFERENT'}")
        equal &= kept == answer
    return equal


def main(directory: Path, rounds: int = 3, *, ui: bool = False) -> bool:
    """Run the example; return whether all views were equal to the batch answer after each round."""
    from headrace.ui.server import UiThread

    with headrace.open(directory / "store", create=True) as store:
        shop = Shop(store)
        spark = headrace.session("shop", conf={"spark.ui.enabled": "false"})
        streams = headrace.sql(spark, workspace=directory)
        page = UiThread(store, directory) if ui else None
        before: dict[str, set[tuple[Any, ...]]] = {}
        equal = True
        try:
            start(store, streams)
            if page is not None:
                print(f"the page: {page.address}")
            for number in itertools.count() if ui else range(rounds + 1):
                if number:
                    shop.change()
                begun = time.monotonic()
                settle(streams, len(VIEWS))
                print(f"round {number}: {time.monotonic() - begun:.1f} s")
                equal &= compare(store, before)
        except KeyboardInterrupt:
            print("stopped")
        finally:
            streams.stop()
            spark.stop()
            if page is not None:
                page.stop()
        return equal


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Keep eight views of a shop, and compare them in each round.")
    parser.add_argument("directory", nargs="?", type=Path, help="a directory for the store; by default a temporary one")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds of changes (default: 3)")
    parser.add_argument("--ui", action="store_true", help="serve the web page, with rounds until Ctrl+C")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-shop-") as temporary:
        raise SystemExit(0 if main(given.directory or Path(temporary), given.rounds, ui=given.ui) else 1)
