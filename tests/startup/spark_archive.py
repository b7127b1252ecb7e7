"""An archive of the Java classes of Spark, which saves eight seconds of a core at each start of Spark.

``python -m tests.startup.spark_archive`` runs a query and writes the archive beside the installed packages, once for
an environment; `make test` does. Java ignores an archive that does not fit its version, its settings or its jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Tests start many short Java processes: a quick start is worth more than peak speed. The one compiler of a quick start
# has room for 48 MB of code. The shared session compiles 70,000 methods, so Java would drop three of four and compile
# them again. The room for classes begins with 20 MB, and Java would collect all garbage whenever it grows.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=400m"
ARCHIVE = Path(sys.prefix) / "spark.jsa"
_SILENT = "-Xlog:disable -Xlog:all=off"


def options() -> str:
    """Return the options of Java for tests. Spark separates them at spaces, so a path cannot have one."""
    usable = ARCHIVE.exists() and " " not in str(ARCHIVE)
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} {_SILENT}" if usable else OPTIONS


def write(archive: Path) -> None:
    """Run a stream with state, and write the classes that it needed."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{OPTIONS} -XX:ArchiveClassesAtExit={archive} {_SILENT}"
    import headrace

    with tempfile.TemporaryDirectory() as directory, headrace.open(f"{directory}/store", create=True) as store:
        spark = headrace.session("archive", master="local[2,4]", conf={"spark.ui.enabled": "false"})
        store.create_queue("numbers", {"number": "long"}).append([{"number": number % 7} for number in range(50)])
        store.create_table("counts", {"number": "long", "count": "long"}, "number")
        store.create_consumer("counter")
        store.register_consumer("numbers", "counter")
        numbers = spark.readStream.format("headrace").options(store=store.url, consumer="counter").load("numbers")
        counts = numbers.groupBy("number").count()
        writer = headrace.write_stream(
            counts, store=store.url, table="counts", mode="update", checkpoint=f"{directory}/checkpoint"
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        java: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
    # Java ends when its standard input does, and writes the archive then.
    assert java.stdin is not None
    java.stdin.close()
    java.wait(300)


if __name__ == "__main__":
    partial = ARCHIVE.with_suffix(".partial")
    write(partial)
    if partial.exists():
        partial.replace(ARCHIVE)
