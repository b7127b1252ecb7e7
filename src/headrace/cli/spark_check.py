"""The check of Spark in `headrace doctor`."""

from __future__ import annotations

import tempfile
import time

from headrace.errors import own_message
from headrace.model.findings import Finding, Status


def check_spark() -> Finding:
    """Start a Spark session and read a table of a new store through the data source."""
    name = "Spark"
    import headrace
    from headrace.cli.spark_errors import filtered

    rows = 3
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as directory:
        try:
            with headrace.open(directory, create=True) as store:
                table = store.create_table("trial", {"id": "long"}, "id")
                table.put([{"id": value} for value in range(rows)])
            with filtered():
                spark = headrace.session("headrace doctor", master="local[1]")
            try:
                read = spark.read.format("headrace").option("store", directory).option("table", "trial").load().count()
                version = spark.version
            finally:
                spark.stop()
        except Exception as error:
            text = str(error).split("\nJVM stacktrace:")[0].strip()
            text = own_message(text) or f"{type(error).__name__}: {text}"
            return Finding(name, Status.FAIL, text, "see the checks above")
    if read != rows:
        return Finding(name, Status.FAIL, f"read {read} rows instead of {rows}", "report this as a bug of headrace")
    return Finding(
        name, Status.OK, f"Spark {version} read a table through format headrace ({time.monotonic() - started:.0f} s)"
    )
