"""`session`: a SparkSession with settings for headrace's streams."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError, OptionError
from headrace.ports.arguments import any_value, mapping, text
from headrace.spark import redaction, versions
from headrace.spark.bare_locations import register_bare_locations
from headrace.spark.connect import check_start, is_connect, names_server
from headrace.spark.java import check_java
from headrace.spark.masters import is_this_machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A local master that retries a failed task, as a cluster does. Of two tasks that read the same channel, one fails.
LOCAL_MASTER = "local[*,4]"
# The variables by which pyspark finds its interpreters, and their settings. Another interpreter may not have headrace.
_INTERPRETERS = {
    "PYSPARK_PYTHON": "spark.pyspark.python",
    "PYSPARK_DRIVER_PYTHON": "spark.pyspark.driver.python",
}
_log = logging.getLogger("headrace")


def session(
    name: str = "headrace", *, master: str | None = None, conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Return a SparkSession for streams: a new one, or the running one with the settings that can still be changed.

    These settings differ from Spark's defaults: the session's time zone is UTC, there is one shuffle partition for each
    core, RocksDB is the state store, Python sources may evaluate filters, Arrow batches for Python have up to 65,536
    rows, and the workers use this interpreter. A new session connects to its workers by Unix domain sockets, in the
    directory ``java.io.tmpdir``. Over Spark Connect, secrets in options and SQL are redacted in the requests that the
    server shows. ``conf`` overrides all of them. Interpreters that it names come before those of the environment, and
    hold for later sessions of the process, too. If the environment names a store with files, Spark itself can open
    checkpoint locations such as ``headrace:///path``, see docs/checkpoints.md.

    Args:
        name: the application's name.
        master: Spark's master; ``local[*,4]`` by default, unless spark-submit or ``conf`` name one.
        conf: more Spark settings.

    Raises:
        OptionError: an argument or a setting is not valid.
        MissingDependencyError: there is no Java 17, its process ended at the start, or the installed pyspark can only
            connect to a server of Spark Connect, and none is named.

    Examples:
        >>> spark = headrace.session("orders", conf={"spark.sql.shuffle.partitions": 2})
        >>> spark.conf.get("spark.sql.session.timeZone")
        'UTC'
    """
    from pyspark.sql import SparkSession

    text(name, "name")
    conf = _settings({} if conf is None else conf)
    if master is not None:
        _settings({"spark.master": text(master, "master")})
    os.environ.update(interpreters(conf, os.environ))
    settings: dict[str, object] = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": os.cpu_count() or 2,
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": 65536,
    }
    builder = SparkSession.builder.appName(name)
    check_start(conf)
    remote = names_server(conf)
    if not remote:
        # A server of Spark Connect has its own, and answers with a warning.
        settings["spark.redaction.regex"] = redaction.SECRET_NAMES
        settings["spark.ui.showConsoleProgress"] = "false"
    if unsupported := versions.unsupported_python():
        _log.warning("%s", unsupported)
    if master is not None or (not remote and SparkSession.getActiveSession() is None):
        chosen = master or conf.get("spark.master") or os.environ.get("MASTER") or LOCAL_MASTER
        settings["spark.master"] = chosen
        if is_this_machine(chosen):
            # The name of a laptop may not resolve. Executors on other machines need the driver's own name.
            settings["spark.driver.host"] = "localhost"
        # By TCP, each task and each call of a source waits 40 ms for an acknowledgement of the worker's last bytes.
        settings["spark.python.unix.domain.socket.enabled"] = str(hasattr(socket, "AF_UNIX")).lower()
    settings.update(conf)
    for key, value in settings.items():
        builder = builder.config(key, str(value))
    spark = _started(builder)
    if is_connect(spark) and redaction.TEXT_SETTING not in conf:
        redaction.redact_requests(spark)
    carry_environment(spark)
    register_bare_locations(spark)
    return spark


def interpreters(conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which pyspark finds its interpreters.

    As in spark-submit, the only part of Spark that reads the settings, these come before the environment.
    """
    return {
        variable: conf.get(setting) or environment.get(variable) or sys.executable
        for variable, setting in _INTERPRETERS.items()
    }


def _started(builder: SparkSession.Builder) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
    except FileNotFoundError:
        # A JAVA_HOME without Java.
        pass
    java = check_java()
    raise MissingDependencyError(
        "Spark's Java process did not start",
        received=java.found,
        valid="Java 17 or newer",
        remedy=java.remedy or "the output before this message says why; `headrace doctor` checks the machine",
    )


def _settings(conf: Mapping[str, object]) -> dict[str, str]:
    """Return Spark settings as texts. Messages do not show values, because they may be secrets."""
    settings = {key: str(value) for key, value in mapping(text, any_value)(conf, "conf").items()}
    for key, value in settings.items():
        if "\0" in key + value or (not value.isascii() and value.encode(errors="replace").decode() != value):
            raise OptionError(f"setting {key!r} has a NUL character or a lone surrogate", received="a text")
    return settings


def carry_environment(spark: SparkSession) -> None:
    """Pass the environment's stores and keys, and the workers' interpreter, to the Python processes of the formats.

    These processes have the environment that the Java process had at its start. A notebook may set a variable later,
    and a new session may use the Java process of a stopped one.
    """
    if is_connect(spark):
        # A server of Spark Connect has its own environment.
        return
    from headrace.formats.registry import FORMATS

    prefixes = tuple({prefix for each in FORMATS.values() for prefix in each.environment})
    context = spark.sparkContext
    java: Any = context._jvm.java.lang.System  # type: ignore[union-attr]
    current = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    known = context.environment
    # The Java processes of other machines have not inherited the environment of this one.
    inherited = {name: java.getenv(name) for name in current} if is_this_machine(str(context.master)) else {}
    changed = {name: value for name, value in current.items() if value != known.get(name, inherited.get(name))}
    known.update(changed)
    # Spark runs the sources that it finds itself with the driver's interpreter, on executors, too.
    if os.environ.get("PYSPARK_DRIVER_PYTHON", context.pythonExec) != context.pythonExec:
        changed["PYSPARK_PYTHON"] = context.pythonExec
    if changed:
        sources = [import_module(f"pyspark_{name}").DefaultSource for name in FORMATS]
        versions.register(spark, sources, sorted(changed))
