"""Several tables of PostgreSQL on one replication slot: a film rental, like the sample database Pagila.

The example makes the tables and their rows itself. One tunnel follows all five tables. A query keeps the payments of
each customer in a sixth table, through refunds and corrections, and a worker counts the changes of each table.

Run it with an empty database, as a user with the attribute REPLICATION::

    HEADRACE_STORE=postgresql://postgres@localhost/rentals python examples/postgres/rentals.py
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

import headrace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.derived.follow.stream import FollowedStream

TABLES = """
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, joined date NOT NULL);
CREATE TABLE film (id int PRIMARY KEY, title text NOT NULL, rate numeric(4,2) NOT NULL, special_features text[]);
CREATE TABLE inventory (id int PRIMARY KEY, film int NOT NULL REFERENCES film, shop int NOT NULL);
CREATE TABLE rental (
    id int PRIMARY KEY, inventory int NOT NULL REFERENCES inventory, customer int NOT NULL REFERENCES customer,
    rented timestamptz NOT NULL, returned timestamptz
);
CREATE TABLE payment (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, rental int NOT NULL REFERENCES rental,
    customer int NOT NULL REFERENCES customer, amount numeric(6,2) NOT NULL
);
-- Changes have the old row of each update and delete, which readAs=table needs.
ALTER TABLE customer REPLICA IDENTITY FULL;
ALTER TABLE film REPLICA IDENTITY FULL;
ALTER TABLE inventory REPLICA IDENTITY FULL;
ALTER TABLE rental REPLICA IDENTITY FULL;
ALTER TABLE payment REPLICA IDENTITY FULL;

INSERT INTO customer SELECT n, 'Customer ' || n, date '2022-01-01' + n FROM generate_series(1, 60) n;
INSERT INTO film SELECT n, 'Film ' || n, 0.99 + n % 4, ARRAY['Trailers'] FROM generate_series(1, 100) n;
INSERT INTO inventory SELECT n, 1 + n % 100, 1 + n % 2 FROM generate_series(1, 400) n;
INSERT INTO rental SELECT n, 1 + n * 7 % 400, 1 + n * 11 % 60, timestamptz '2022-05-01 10:00+00' + n * interval '1 hour'
    FROM generate_series(1, 500) n;
INSERT INTO payment (rental, customer, amount)
    SELECT r.id, r.customer, f.rate FROM rental r JOIN inventory i ON i.id = r.inventory JOIN film f ON f.id = i.film;

CREATE TABLE revenue (customer bigint PRIMARY KEY, payments bigint, total numeric(38,2));
"""
FOLLOWED = ["customer", "film", "inventory", "rental", "payment"]
REVENUE = """
SELECT payment.customer, count(*) AS payments, CAST(sum(payment.amount) AS decimal(38,2)) AS total
FROM (
    SELECT from_json(row, 'customer bigint, amount decimal(6,2)') AS payment FROM rentals WHERE table = 'payment'
) GROUP BY payment.customer
"""
# The same in PostgreSQL.
EXPECTED = "SELECT customer, count(*), sum(amount) FROM payment GROUP BY customer ORDER BY customer"
# A day in the shops; each is one transaction.
DAY = [
    """INSERT INTO rental SELECT 500 + n, n, 1 + n % 60, timestamptz '2022-06-01 10:00+00'
        FROM generate_series(1, 80) n;
    INSERT INTO payment (rental, customer, amount) SELECT id, customer, 2.99 FROM rental WHERE id > 500""",
    "UPDATE rental SET returned = rented + interval '3 days' WHERE id <= 200",
    # A refund, a correction, and a film that becomes cheaper.
    """DELETE FROM payment WHERE rental BETWEEN 10 AND 19;
    UPDATE payment SET amount = amount - 1 WHERE rental = 20""",
    "UPDATE film SET rate = 0.99 WHERE id = 3",
]


def build(spark: SparkSession, url: str, checkpoint: Path) -> FollowedStream:
    """Return the query over all tables."""
    rentals = spark.readStream.format("headrace").options(store=url, tunnel="revenue", readAs="table").load()
    return headrace.follow(
        spark,
        REVENUE,
        scans={"rentals": rentals},
        store=url,
        table="revenue",
        checkpoint=checkpoint,
        trigger={"availableNow": True},
    )


def count_changes(store: headrace.Store) -> Counter[tuple[str, str]]:
    """Return the number of new changes for each table and type, by a worker without Spark."""
    counts: Counter[tuple[str, str]] = Counter()
    for batch in store.tunnel("audit").consume(idle="stop"):
        changes = batch.to_arrow()
        counts.update(zip(changes["table"].to_pylist(), changes["_change_type"].to_pylist(), strict=True))
    return counts


def main(url: str, directory: Path) -> bool:
    """Run the example; return whether the revenue in the table is that of the payments."""
    spark = headrace.session("rentals")
    with psycopg.connect(url, autocommit=True) as shop, headrace.open(url) as store:
        shop.execute(TABLES)
        # Each reader has a tunnel; the tables of a tunnel share one slot.
        for name in ("revenue", "audit"):
            store.create_tunnel_of_tables(FOLLOWED, name)
        build(spark, url, directory / "checkpoint").start().awaitTermination()
        print("rows that existed:", count_changes(store).total())
        for transaction in DAY:
            shop.execute(transaction)
        build(spark, url, directory / "checkpoint").start().awaitTermination()
        for (table, change), count in sorted(count_changes(store).items()):
            print(f"{table:10}{change:20}{count:5}")
        found = shop.execute("SELECT customer, payments, total FROM revenue ORDER BY customer").fetchall()
        same = found == shop.execute(EXPECTED).fetchall()
        print(f"{len(found)} customers, {sum(row[2] for row in found)} in all; equal to PostgreSQL's result: {same}")
        for name in ("revenue", "audit"):
            store.drop_tunnel(name)
    return same


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        raise SystemExit(0 if main(os.environ["HEADRACE_STORE"], Path(temporary)) else 1)
