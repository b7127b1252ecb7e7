"""Creates, fills and reads the tables of the jobs, over the network. Started by `Cluster.run_job`."""

from __future__ import annotations

import json
import sys
from typing import Any

import headrace

COLUMNS = {"user": "string", "ms": "long"}


def main(given: dict[str, Any]) -> None:
    """Create the tables, append rows, or print the totals with the offsets of their consumer."""
    with headrace.open(given["store"], **given.get("open", {})) as store:
        if given.get("create"):
            store.create_queue("clicks", COLUMNS, partitions=2)
            store.create_table("totals", {"user": "string", "clicks": "long", "ms": "long"}, "user")
            store.create_consumer("//home/totals")
            store.register_consumer("clicks", "//home/totals", vital=True)
        first, end = given.get("append", (0, 0))
        for partition in (0, 1) if first < end else ():
            rows = [{"user": f"u{n % 10}", "ms": n} for n in range(first, end) if n % 2 == partition]
            store.queue("clicks").append(rows, partition=partition)
        if given.get("read"):
            totals = store.table("totals").scan().read_all().to_pylist()
            print(json.dumps({"totals": totals, "offsets": store.consumer("//home/totals").offsets("clicks")}))


main(json.loads(sys.argv[1]))
