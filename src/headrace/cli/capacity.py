"""``headrace capacity``: the resources that a stream needs for a rate."""

from __future__ import annotations

from dataclasses import asdict

import click

from headrace.cli.app import App, with_app
from headrace.inspect.capacity import EXECUTOR_CORES, MEASURED_BYTES, QUERIES, READS, WRITES, Need, Stream, need


@click.command(short_help="Estimate the executors, partitions and connections for a rate.")
@click.argument("rate", type=click.FloatRange(min=0, min_open=True))
@click.option("--from", "read", type=click.Choice(list(READS)), required=True, help="What the stream reads.")
@click.option("--query", type=click.Choice(list(QUERIES)), default="rows", show_default=True,
              help="Rows one by one, or groups with state: windows, counts, joins.")  # fmt: skip
@click.option("--to", "write", type=click.Choice(list(WRITES)), default="none", show_default=True,
              help="What it writes, exactly once where the store can.")  # fmt: skip
@click.option("--row-bytes", type=click.IntRange(min=1), default=MEASURED_BYTES, show_default=True,
              help="The bytes of a row that is read: 8 for a number or a time, the length of a text.")  # fmt: skip
@click.option("--written-bytes", type=click.IntRange(min=1),
              help=f"The bytes of a written row. By default as read; of groups, at most {MEASURED_BYTES}.")  # fmt: skip
@click.option("--executor-cores", type=click.IntRange(min=1), default=EXECUTOR_CORES, show_default=True,
              help="The cores of each executor (spark.executor.cores).")  # fmt: skip
@with_app
def capacity(
    app: App,
    rate: float,
    read: str,
    query: str,
    write: str,
    row_bytes: int,
    written_bytes: int | None,
    executor_cores: int,
) -> None:
    """Estimate what a stream of RATE rows a second needs, from costs that were measured.

    The estimate is for cores like those of docs/benchmarks.md, and within a factor of two there. Memory is not
    estimated. Measure your own stream before you buy machines.

    \b
    Example:
      headrace capacity 500000 --from yt-queue --query groups --to yt-table --executor-cores 4
    """
    found = need(Stream(read, query, write, row_bytes, written_bytes), rate, executor_cores=executor_cores)
    app.output.record(asdict(found) if app.json else _facts(found), title=f"{rate:,.0f} rows/s")


def _facts(found: Need) -> dict[str, object]:
    facts = {
        f"executors of {found.executor_cores} core{'s' * (found.executor_cores > 1)}": found.executors,
        "cores that they use": found.cores,
        "partitions or tablets to read": found.partitions,
        "spark.sql.shuffle.partitions": found.shuffle_partitions,
        "cores of the store's server": found.server_cores or None,
        "connections to PostgreSQL, at most": found.connections or None,
        "busy writer or slot": f"{found.serial:.0%}" if found.serial else None,
    }
    return {name: value for name, value in facts.items() if value is not None}
