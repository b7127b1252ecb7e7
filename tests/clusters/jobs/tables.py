"""Creates, fills and reads the tables of the jobs, over the network. Started by `Cluster.run_job` and `talk_to_job`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import headrace
from headrace.ports import Store

COLUMNS = {"user": "string", "ms": "long"}


def act(store: Store, given: Mapping[str, Any]) -> None:
    """Create the tables, append rows, or print what the jobs have written and where their consumers are."""
    if given.get("create"):
        store.create_queue("clicks", COLUMNS, partitions=2)
        store.create_queue("copied", COLUMNS)
        store.create_table("totals", {"user": "string", "clicks": "long", "ms": "long"}, "user")
        for consumer in ("//home/totals", "//home/copies"):
            store.create_consumer(consumer)
            store.register_consumer("clicks", consumer, vital=True)
    first, end = given.get("append", (0, 0))
    for partition in (0, 1) if first < end else ():
        rows = [{"user": f"u{n % 10}", "ms": n} for n in range(first, end) if n % 2 == partition]
        store.queue("clicks").append(rows, partition=partition)
    if given.get("read"):
        totals = store.table("totals").scan().read_all().to_pylist()
        copied: list[int] = []
        while rows := store.queue("copied").read(partition=0, first_row=len(copied)).rows.to_pylist():
            copied += [row["ms"] for row in rows]
        offsets = {name: store.consumer(f"//home/{name}").offsets("clicks") for name in ("totals", "copies")}
        print(json.dumps({"totals": totals, "copied": copied, "offsets": offsets}), flush=True)


with headrace.open(json.loads(sys.argv[1])["store"]) as opened:
    act(opened, json.loads(sys.argv[1]))
    for line in sys.stdin:
        act(opened, json.loads(line))
