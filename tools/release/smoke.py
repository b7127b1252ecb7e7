"""A job with an installed headrace: ``python smoke.py CHECKOUT``, in an empty directory, with the environment's Python.

It uses what a first day uses: the embedded store from Python, the commands, a query of DuckDB, a stream of SQL in
Spark that follows a table, and the page. Nothing may come from the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import entry_points, version
from pathlib import Path

import headrace

COMMAND = Path(sys.executable).with_name("headrace")
JOB = """
CREATE TABLE orders USING headrace OPTIONS (store = 'shop', table = 'orders');
CREATE TABLE totals USING headrace OPTIONS (store = 'shop', table = 'totals');
CREATE TUNNEL IF NOT EXISTS totals ON orders;
CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'totals', readAs = 'table');
CREATE STREAM totals_per_user OPTIONS (outputMode = 'update')
INSERT INTO totals SELECT user, count(*) AS orders, sum(price) AS spent FROM orders_now GROUP BY user;
"""
# The page starts in about a second.
PATIENCE_SECONDS = 60


def main(checkout: Path) -> None:
    """Run all steps; an exception is a failure."""
    home = Path(headrace.__file__).resolve()
    assert not home.is_relative_to(checkout), f"headrace comes from the checkout: {home}"
    assert version("headrace") == headrace.__version__
    for group in ("headrace.stores", "headrace.formats", "headrace.endpoints", "headrace.commands"):
        assert entry_points(group=group), f"the package declares no {group}"
    _fill()
    _run("doctor")
    _load()
    _stream()
    _change()
    _stream()
    _show_page()
    print(f"headrace {headrace.__version__} works from {home.parent}")


def _fill() -> None:
    store = headrace.open("shop", create=True)
    store.create_table("orders", {"id": "string", "user": "string", "price": "double"}, "id", pre_images=True)
    store.create_table("totals", {"user": "string", "orders": "long", "spent": "double"}, "user")


def _load() -> None:
    Path("orders.csv").write_text("id,user,price\no1,u1,10.0\no2,u2,4.0\no3,u1,2.5\n")
    _run("load", "orders.csv", "--table", "orders")
    assert "3" in _run("query", "SELECT count(*) AS n FROM orders", "--format", "csv")


def _change() -> None:
    orders = headrace.open("shop").table("orders")
    orders.update({"id": "o1", "price": 12.5})
    orders.delete({"id": "o2"})


def _stream() -> None:
    """Run the job, and compare its result with the query over the table."""
    Path("job.sql").write_text(JOB if not Path(".headrace").exists() else "START STREAM totals_per_user;")
    _run("run", "job.sql", "--available-now")
    same = "SELECT user, count(*) AS orders, sum(price) AS spent FROM orders GROUP BY user ORDER BY user"
    expected = _run("query", same, "--format", "csv")
    assert _run("query", "SELECT * FROM totals ORDER BY user", "--format", "csv") == expected, expected


def _show_page() -> None:
    """Start the page at a free port, and read its start page."""
    command = [COMMAND, "ui", "--store", "shop", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as page:
        try:
            assert page.stdout is not None
            address = re.search(r"http://\S+", page.stdout.readline())
            assert address, "the page names no address"
            with urllib.request.urlopen(address[0], timeout=PATIENCE_SECONDS) as response:
                text = response.read().decode()
            assert response.status == 200, response.status
            assert "totals" in text, text
        finally:
            page.terminate()


def _run(*arguments: str) -> str:
    start = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [COMMAND, *arguments],
        env=environment | {"HEADRACE_STORE": "shop"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(f"headrace {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    print(f"headrace {arguments[0]}: {time.monotonic() - start:.1f} s", flush=True)
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
