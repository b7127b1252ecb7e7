"""The start of Spark: from the start of a process until the end of its first batch."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace
from bench.measure import Result

# Without Java's optimizing compiler, as the demonstration starts its drivers.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SILENT = "-Xlog:disable -Xlog:all=off"
_REPEATS = 3
_ORDERS = 1000


def start(directory: Path, scale: float) -> Result:
    """Start processes with a count by window: headrace's, and one of Spark's own source and sink."""
    archive = directory / "spark.jsa"
    _run(directory, "archive", "ours", f"{QUICK} -XX:ArchiveClassesAtExit={archive} {_SILENT}")
    cases = {
        "Spark alone: rate source into the memory sink": ("spark", ""),
        "headrace": ("ours", ""),
        "headrace, Java's first compiler only": ("ours", QUICK),
        "headrace, the same with an archive of classes": ("ours", f"{QUICK} -XX:SharedArchiveFile={archive} {_SILENT}"),
    }
    taken: dict[str, list[Mapping[str, float]]] = {name: [] for name in cases}
    for number in range(_REPEATS):
        for place, (name, (job, options)) in enumerate(cases.items()):
            taken[name].append(_run(directory, f"{place}-{number}", job, options))
    figures = {}
    for name, runs in taken.items():
        parts = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        figures[name] = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in parts.items())
    return Result(
        "start: from the start of a process until the end of its first batch, a count of 1,000 rows by window",
        figures,
        note=f"Medians of {_REPEATS} processes. *process* is Python and its imports, *session* is Java and Spark's "
        "context, *plan* ends when the query has started. *second query* is another such query in the same "
        "process, whose Java is warm, until the end of its first batch.",
    )


def _run(directory: Path, name: str, job: str, options: str) -> Mapping[str, float]:
    """Run a job in a process, and return the seconds of its parts."""
    place = directory / name
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "bench.start", job, str(place)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    parts: Mapping[str, float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def main(arguments: Sequence[str]) -> None:
    """Be such a process: print the seconds of its parts as JSON."""
    job, place = arguments[0], Path(arguments[1])
    begin = psutil.Process().create_time()
    store = headrace.open(place / "store", create=True)
    orders = store.create_table("orders", {"id": "long", "ts": "long"}, "id")
    orders.put([{"id": number, "ts": 1_700_000_000_000 + number * 1000} for number in range(_ORDERS)])
    marks = {"begin": begin, "process": time.time()}
    spark = headrace.session("start", master="local[2,4]", conf={"spark.ui.enabled": "false"})
    marks["session"] = time.time()

    def first_batch(name: str) -> None:
        if job == "spark":
            options = {"rowsPerBatch": _ORDERS, "startTimestamp": 1_700_000_000_000, "advanceMillisPerBatch": 1000}
            rows = (
                spark.readStream.format("rate-micro-batch").options(**options).load().withColumnRenamed("value", "ts")
            )
        else:
            store.create_tunnel("orders", name)
            store.create_table(name, {"begin": "string", "n": "long"}, "begin")
            rows = spark.readStream.format("headrace").options(store=store.url, tunnel=name).load("orders")
        windows: DataFrame = rows.groupBy(F.window(F.timestamp_millis("ts"), "30 seconds")).agg(F.count("*").alias("n"))
        found = windows.select(F.col("window.start").cast("string").alias("begin"), "n")
        if job == "spark":
            writer = found.writeStream.format("memory").queryName(name).outputMode("update")
            query = writer.option("checkpointLocation", str(place / f"{name}-checkpoint")).start()
        else:
            query = headrace.write_stream(
                found, store=store.url, table=name, mode="update", checkpoint=place / f"{name}-checkpoint"
            ).start()
        marks.setdefault("plan", time.time())
        while not query.recentProgress:
            time.sleep(0.005)
        query.stop()

    first_batch("one")
    marks["first batch"] = time.time()
    first_batch("two")
    marks["second query"] = time.time()
    names = list(marks)
    parts = {name: marks[name] - marks[before] for before, name in itertools.pairwise(names)}
    print(json.dumps({**parts, "all": marks["first batch"] - begin}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
