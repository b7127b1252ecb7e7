"""The tables of Nexmark, an auction house, and its queries as queries over tables that change.

The texts mean the same to Spark and to DuckDB. Times are milliseconds, so that windows are computed: a tumbling window
is ``ts - ts % 10000``, a sliding one joins its offsets, and a session begins after a pause. Queries of the processing
time (12), of files (10) and of a side input (13) are left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tests.views.streams import KeyedView
from tests.views.tables import TableDefinition

_STATES = ("OR", "ID", "CA", "NY", "")
_CHANNELS = ("Google", "Facebook", "Baidu", "apple", "channel-1")
_URLS = tuple(f"https://www.nexmark.com/{a}/item.htm?query=1&channel_id={a}" for a in ("abo", "zau", "dax"))
_TIMES = tuple(range(0, 60_000, 400))
_PRICES = (1, 5, 5, 80, 100, 10_001, 250_000)
TABLES: Mapping[str, TableDefinition] = {
    "person": TableDefinition(
        {"id": "long", "name": "string", "city": "string", "state": "string", "ts": "long"},
        ("id",),
        values={"name": ("ada", "bob", "Bob"), "city": ("Salem", "Boise"), "state": _STATES, "ts": _TIMES},
    ),
    "auction": TableDefinition(
        {
            "id": "long", "item": "string", "initial": "long", "reserve": "long", "ts": "long", "expires": "long",
            "seller": "long", "category": "long",
        },
        ("id",),
        {"seller": "person"},
        values={
            "item": ("vase", "lamp"), "initial": (1, 50), "reserve": (60, 200), "ts": _TIMES,
            "expires": tuple(time + 20_000 for time in _TIMES), "category": (10, 11, 12, 13),
        },
    ),
    "bid": TableDefinition(
        {
            "id": "long", "auction": "long", "bidder": "long", "price": "long", "channel": "string", "url": "string",
            "ts": "long", "extra": "string",
        },
        ("id",),
        {"auction": "auction", "bidder": "person"},
        values={
            "price": _PRICES, "channel": _CHANNELS, "url": _URLS, "ts": _TIMES, "extra": ("", "cacao", "Cc"),
        },
    ),
}  # fmt: skip
NOT_NULL = frozenset({"ts", "auction", "bidder", "seller", "category", "name", "channel"})
"""The columns that must not be null, so that the keys of the answers are not."""
_SIZES = {"person": 15, "auction": 40, "bid": 400}

_QUERIES: Mapping[str, tuple[str, str]] = {
    "q0": ("id", "SELECT id, auction, bidder, price, ts, extra FROM bid"),
    "q1": ("id", "SELECT id, auction, bidder, 0.908 * price AS price, ts FROM bid"),
    "q2": ("id", "SELECT id, auction, price FROM bid WHERE auction % 7 = 0"),
    "q3": (
        "id",
        "SELECT a.id, p.name, p.city, p.state FROM auction a JOIN person p ON a.seller = p.id "
        "WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')",
    ),
    "q4": (
        "category",
        "SELECT q.category, avg(q.final) AS mean FROM (SELECT max(b.price) AS final, a.category FROM auction a, bid b "
        "WHERE a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.category) q GROUP BY q.category",
    ),
    "q5": (
        "begins auction",
        "WITH counts AS (SELECT auction, ts - ts % 2000 - o AS begins, count(*) AS n FROM bid, "
        "(VALUES (0), (2000), (4000), (6000), (8000)) h (o) GROUP BY auction, ts - ts % 2000 - o) "
        "SELECT c.begins, c.auction, c.n FROM counts c "
        "JOIN (SELECT max(n) AS n, begins FROM counts GROUP BY begins) m ON c.begins = m.begins AND c.n >= m.n",
    ),
    "q6": (
        "id",
        "SELECT id, seller, avg(final) OVER (PARTITION BY seller ORDER BY ts, id ROWS BETWEEN 10 PRECEDING AND CURRENT "
        "ROW) AS mean FROM (SELECT max(b.price) AS final, max(b.ts) AS ts, a.id, a.seller FROM auction a JOIN bid b "
        "ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires GROUP BY a.id, a.seller) q",
    ),
    "q7": (
        "id",
        "SELECT b.id, b.auction, b.price FROM bid b JOIN (SELECT max(price) AS most, ts - ts % 10000 AS start "
        "FROM bid GROUP BY ts - ts % 10000) m ON b.price = m.most AND b.ts - b.ts % 10000 = m.start",
    ),
    "q8": (
        "id begins",
        "SELECT p.id, p.name, p.begins FROM (SELECT id, name, ts - ts % 10000 AS begins FROM person) p JOIN (SELECT "
        "DISTINCT seller, ts - ts % 10000 AS begins FROM auction) a ON p.id = a.seller AND p.begins = a.begins",
    ),
    "q9": (
        "id",
        "SELECT id, item, seller, price, bidder FROM (SELECT a.*, b.price, b.bidder, row_number() OVER (PARTITION BY "
        "a.id ORDER BY b.price DESC NULLS LAST, b.ts, b.id) AS place FROM auction a JOIN bid b ON a.id = b.auction "
        "AND b.ts BETWEEN a.ts AND a.expires) w WHERE place = 1",
    ),
    "q11": (
        "bidder session",
        "SELECT bidder, session, count(*) AS bids, min(ts) AS begins, max(ts) AS ends FROM (SELECT bidder, ts, sum(new)"
        " OVER (PARTITION BY bidder ORDER BY ts) AS session FROM (SELECT bidder, ts, CASE WHEN ts - lag(ts) OVER "
        "(PARTITION BY bidder ORDER BY ts, id) <= 2000 THEN 0 ELSE 1 END AS new FROM bid) s) t "
        "GROUP BY bidder, session",
    ),
    "q14": (
        "id",
        "SELECT id, auction, 0.908 * price AS price, CASE WHEN ts % 30000 < 8000 THEN 'night' WHEN ts % 30000 < 18000 "
        "THEN 'day' ELSE 'other' END AS part, length(extra) - length(replace(extra, 'c', '')) AS c_counts FROM bid "
        "WHERE 0.908 * price > 50 AND 0.908 * price < 20000",
    ),
    "q15": (
        "day",
        "SELECT ts - ts % 20000 AS day, count(*) AS bids, count(*) FILTER (WHERE price < 100) AS low, count(*) FILTER "
        "(WHERE price >= 100) AS high, count(DISTINCT bidder) AS bidders, count(DISTINCT auction) FILTER (WHERE price "
        "< 100) AS auctions FROM bid GROUP BY ts - ts % 20000",
    ),
    "q16": (
        "channel day",
        "SELECT channel, ts - ts % 20000 AS day, max(ts) AS latest, count(*) AS bids, count(DISTINCT bidder) FILTER "
        "(WHERE price >= 100) AS bidders FROM bid GROUP BY channel, ts - ts % 20000",
    ),
    "q17": (
        "auction day",
        "SELECT auction, ts - ts % 20000 AS day, count(*) AS bids, min(price) AS low, max(price) AS high, avg(price) "
        "AS mean, sum(price) AS total FROM bid GROUP BY auction, ts - ts % 20000",
    ),
    "q18": (
        "bidder auction",
        "SELECT bidder, auction, price, ts FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY ts "
        "DESC, id DESC) AS place FROM bid) b WHERE place <= 1",
    ),
    "q19": (
        "auction place",
        "SELECT auction, place, id, price FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC "
        "NULLS LAST, id) AS place FROM bid) b WHERE place <= 10",
    ),
    "q20": (
        "id",
        "SELECT b.id, b.auction, b.price, a.item, a.seller, a.category FROM bid b JOIN auction a ON b.auction = a.id "
        "WHERE a.category = 10",
    ),
    "q21": (
        "id",
        "SELECT id, auction, CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1' ELSE "
        "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM bid "
        "WHERE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) <> '' OR lower(channel) IN ('apple', 'google')",
    ),
    "q22": ("id", "SELECT id, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2 FROM bid"),
}


def queries() -> dict[str, KeyedView]:
    """Return the queries by name."""
    return {
        name: KeyedView(sql, tuple(key.split()), sql, tuple(each for each in TABLES if f" {each}" in sql))
        for name, (key, sql) in _QUERIES.items()
    }


def first_rows(seed: int) -> dict[str, pa.Table]:
    """Return random rows of the tables."""
    rng = random.Random(seed)
    return {name: table.arrow([_row(rng, table, n) for n in range(_SIZES[name])]) for name, table in TABLES.items()}


def _row(rng: random.Random, table: TableDefinition, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"id": number}
    for column in table.columns:
        if column in table.references:
            # Some rows do not exist.
            row[column] = rng.randrange(_SIZES[table.references[column]] + 2)
        elif column in table.values:
            row[column] = rng.choice(table.values[column])
    return row
