"""A SparkSession with the settings that headrace's streams want."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.ports.arguments import any_value, mapping, text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A local master that runs a failed task again, as a cluster does: a task may lose a race on purpose.
LOCAL_MASTER = "local[*,4]"
# Key names of the data source options that hold secrets, on top of Spark's own.
REDACTION = "(?i)secret|password|token|access[.]?key|credential"

# What begins the names of variables that stores, keys and the configuration of YTsaurus' client are taken from.
_VARIABLES = ("HEADRACE_", "YT_")


def session(
    name: str = "headrace", *, master: str | None = None, conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Return a SparkSession for streams, or the running one with what can still be set.

    What differs from Spark's defaults: UTC as the session's time zone, as many shuffle partitions as cores (a
    local stream has no use for 200), RocksDB as the state store, leave for Python sources to take filters, and
    this interpreter for the workers. ``conf`` overrides all of it.

    Args:
        name: the application's name.
        master: Spark's master; ``local[*,4]`` by default, unless spark-submit or ``conf`` name one.
        conf: further Spark settings.
    """
    from pyspark.sql import SparkSession

    text(name, "name")
    conf = _settings({} if conf is None else conf)
    if master is not None:
        _settings({"spark.master": text(master, "master")})
    # Workers of another interpreter lack headrace, and Spark only says that they crashed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings: dict[str, object] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": os.cpu_count() or 2,
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 65536,
        "spark.redaction.regex": REDACTION,
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName(name)
    if master is not None or (SparkSession.getActiveSession() is None and "SPARK_REMOTE" not in os.environ):
        settings["spark.master"] = master or conf.get("spark.master") or os.environ.get("MASTER") or LOCAL_MASTER
        settings["spark.driver.host"] = "localhost"
    settings.update(conf)
    for key, value in settings.items():
        builder = builder.config(key, str(value))
    spark = builder.getOrCreate()
    carry_environment(spark)
    return spark


def _settings(conf: Mapping[str, object]) -> dict[str, str]:
    """Return Spark settings as texts; messages do not show a value, which may be a secret."""
    settings = {key: str(value) for key, value in mapping(text, any_value)(conf, "conf").items()}
    for key, value in settings.items():
        if "\0" in key + value or (not value.isascii() and value.encode(errors="replace").decode() != value):
            raise OptionError(f"setting {key!r} has a NUL or half of a surrogate pair in it", received="a text")
    return settings


def carry_environment(spark: SparkSession) -> None:
    """Let the formats see the stores that the environment names now.

    Spark's Python processes have the environment that its Java process had at its start, which may be long ago: a
    notebook sets a variable later, and a stopped session leaves the process to the next one.
    """
    if not hasattr(spark, "_jsparkSession"):
        # A client of Spark Connect, whose server has an environment of its own.
        return
    from headrace.spark.sources import FormatDataSource

    context = spark.sparkContext
    java: Any = context._jvm.java.lang.System  # type: ignore[union-attr]
    named = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    missed = {name: value for name, value in named.items() if value != context.environment.get(name, java.getenv(name))}
    if missed:
        context.environment.update(missed)
        for format_class in FormatDataSource.__subclasses__():
            spark.dataSource.register(format_class)
