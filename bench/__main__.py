"""Run the benchmarks: ``python -m bench [--scale 1.0] [--write build/benchmarks.md] [name …]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import (
    capacity,
    checkpoints,
    ducklake,
    following,
    joins,
    lake,
    latency,
    mirrors,
    plainbuffer,
    postgres,
    postgres_latency,
    postgres_mirrors,
    postgres_several_tables,
    postgres_tunnels,
    queues,
    single_rows,
    start,
    streams,
    tables,
    tablestore,
    views,
    yson,
    ytsaurus,
)
from bench.growth import logs, objects, writers
from bench.machine import machine, use_two_processors
from bench.measure import Result
from bench.peers import debezium, flink_cdc, flink_sql, own_sources
from bench.peers.running import on_peers_spark

BENCHMARKS: dict[str, Callable[[Path, float], Result]] = {
    "put": tables.put,
    "scan": tables.scan,
    "diff": tables.diff,
    "source": streams.source,
    "sink": streams.sink,
    "following": following.following,
    "following_rows": following.following_rows,
    "following_size": following.following_size,
    "joins_small": joins.joins_small,
    "joins_large": joins.joins_large,
    "views_small": views.views_small,
    "views_large": views.views_large,
    "views_tunnels": views.views_tunnels,
    "mirror": mirrors.mirror,
    "delta_changes": lake.delta_changes,
    "delta_large": lake.delta_large,
    "idle": latency.idle,
    "small_batch": latency.small_batch,
    "history": latency.history,
    "latency_stream": single_rows.latency_stream,
    "latency_windows": single_rows.latency_windows,
    "latency_worker": single_rows.latency_worker,
    "start": start.start,
    "checkpoints": checkpoints.checkpoints,
    "queue_append": queues.queue_append,
    "queue_source": queues.queue_source,
    "queue_to_queue": queues.queue_to_queue,
    "queue_length": queues.queue_length,
    "queue_width": queues.queue_width,
    "plainbuffer_decode": plainbuffer.plainbuffer_decode,
    "plainbuffer_encode": plainbuffer.plainbuffer_encode,
    "yson_decode": yson.yson_decode,
    "yson_encode": yson.yson_encode,
    "postgres_put": postgres.postgres_put,
    "postgres_scan": postgres.postgres_scan,
    "ducklake_inlined": ducklake.ducklake_inlined,
    "postgres_slot": postgres_tunnels.postgres_slot,
    "postgres_snapshot": postgres_tunnels.postgres_snapshot,
    "postgres_stream": postgres_tunnels.postgres_stream,
    "postgres_several_tables": postgres_several_tables.postgres_several_tables,
    "postgres_latency": postgres_latency.postgres_latency,
    "postgres_mirror": postgres_mirrors.postgres_mirror,
    "postgres_idle": postgres_latency.postgres_idle,
    "tablestore_tunnel": tablestore.tablestore_tunnel,
    "tablestore_put": tablestore.tablestore_put,
    "ytsaurus_queue": ytsaurus.ytsaurus_queue,
    "ytsaurus_exactly_once": ytsaurus.ytsaurus_exactly_once,
    "capacity": capacity.capacity,
    "growth_partitions": objects.growth_partitions,
    "growth_channels": objects.growth_channels,
    "growth_tables": objects.growth_tables,
    "growth_streams": objects.growth_streams,
    "growth_queue": logs.growth_queue,
    "growth_log": logs.growth_log,
    "growth_writers": writers.growth_writers,
    "peers_kafka_source": on_peers_spark("kafka_source"),
    "peers_kafka_copy": on_peers_spark("kafka_copy"),
    "peers_kafka_latency": on_peers_spark("kafka_latency"),
    "peers_delta_merge": on_peers_spark("delta_merge"),
    "peers_delta_feed": on_peers_spark("delta_feed"),
    "peers_spark_sources": own_sources.own_sources,
    "peers_debezium_changes": debezium.changes,
    "peers_debezium_snapshot": debezium.snapshot,
    "peers_debezium_copy": debezium.copy,
    "peers_flink_changes": flink_cdc.changes,
    "peers_flink_snapshot": flink_cdc.snapshot,
    "peers_flink_join": flink_sql.join,
}
GROUPS = {
    group: [name for name in BENCHMARKS if name.startswith(f"{group}_")] for group in ("growth", "peers", "views")
}
"""Names of several benchmarks."""


def chosen(names: Sequence[str]) -> list[str]:
    """Return the benchmarks of names and groups; without names, all benchmarks."""
    return [each for name in names for each in GROUPS.get(name, [name])] or list(BENCHMARKS)


def as_markdown(results: list[Result], scale: float) -> str:
    """Return the results as a page in Markdown."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m bench`. Both sides of a ratio were measured in the same run. The absolute figures",
        "depend on the machine.",
        "",
        f"Machine: {machine()}; scale {scale:g}.",
    ]
    for result in results:
        lines += ["", f"## {result.title}", "", "| what | measured |", "|---|---|"]
        lines += [f"| {what} | {figure} |" for what, figure in result.figures.items()]
        for ratio in result.ratios:
            bound = f"{'at most' if ratio.at_most else 'at least'} {ratio.bound:g}"
            lines.append(
                f"| **{ratio.what}** | **{ratio.value:.2f}** ({bound}: {'kept' if ratio.kept else 'MISSED'}) |"
            )
        if result.note:
            lines += ["", result.note]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    valid = ", ".join([*BENCHMARKS, *GROUPS])
    parser.add_argument("names", nargs="*", help=f"of {valid}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="the fraction of the full sizes to run")
    parser.add_argument("--write", type=Path, help="write the page to this file")
    arguments = parser.parse_args()
    names = chosen(arguments.names)
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; valid: {valid}")
    use_two_processors()
    results = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory:
            print(f"{name} …", file=sys.stderr, flush=True)
            results.append(BENCHMARKS[name](Path(directory), arguments.scale))
            print(as_markdown(results[-1:], arguments.scale).split("##", 1)[1], file=sys.stderr, flush=True)
    page = as_markdown(results, arguments.scale)
    if arguments.write:
        arguments.write.write_text(page)
    else:
        print(page)
    return 0 if all(ratio.kept for result in results for ratio in result.ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
