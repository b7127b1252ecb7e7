"""Create the store of the pipeline: tables, the tunnels that its flows read, and some changes.

Run again with ``--more`` for an update, a delete and an insert, which the next run of the pipeline picks up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import headrace

TUNNELS = ("history", "big")


def create(directory: Path) -> None:
    """Create the store with 6 orders of 3 users."""
    with headrace.open(directory / "store", create=True) as store:
        users = store.create_table("users", {"user": "string", "city": "string"}, "user")
        orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id")
        store.create_table("big_orders", {"id": "long", "user": "string", "p2": "double", "version": "long"}, "id")
        store.create_table("closed_orders", {"id": "long", "version": "long"}, "id")
        for tunnel in TUNNELS:
            store.create_tunnel("orders", tunnel, kind="BaseAndStream")
        users.put([{"user": "u0", "city": "Riga"}, {"user": "u1", "city": "Riga"}, {"user": "u2", "city": "Oslo"}])
        orders.put([{"id": n, "user": f"u{n % 3}", "price": n * 20.0} for n in range(6)])


def change(directory: Path) -> None:
    """Update one order, delete one, and insert one."""
    with headrace.open(directory / "store") as store:
        orders = store.table("orders")
        orders.put([{"id": 1, "user": "u1", "price": 75.0}])
        orders.delete([{"id": 5}])
        orders.put([{"id": 6, "user": "u2", "price": 5.0}])


def show(directory: Path) -> None:
    """Print the tables that the pipeline writes."""
    with headrace.open(directory / "store") as store:
        for name in ("big_orders", "closed_orders"):
            print(name, *store.table(name).scan().read_all().to_pylist(), sep="\n  ")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("directory", type=Path)
    arguments.add_argument("--more", action="store_true", help="change the orders of an existing store")
    arguments.add_argument("--show", action="store_true", help="print the tables that the pipeline writes")
    given = arguments.parse_args()
    (change if given.more else show if given.show else create)(given.directory)


if __name__ == "__main__":
    main()
