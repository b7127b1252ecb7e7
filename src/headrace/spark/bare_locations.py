"""Bare checkpoint locations as file systems of Spark: ``headrace:///path`` and ``yt:///path`` in any option of Spark.

Hadoop's ``ViewFileSystemOverloadScheme``, which Spark contains, maps a scheme to another file system by settings. Here
it maps the schemes to WebHDFS on the server of this process, so that Spark itself opens these locations. All schemes
share Hadoop's default mount table, so that they are in one store: the one that the environment names.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace.checkpoint_server.locations import PREFIX
from headrace.checkpoint_server.served_directories import DEFAULT_KEY
from headrace.checkpoint_server.server import serve_default
from headrace.errors import HeadraceError
from headrace.formats.registry import CHECKPOINT_SCHEMES
from headrace.spark.checkpoint_location import configure, server_host
from headrace.spark.connect import is_connect
from headrace.stores.registry import absolute
from headrace.stores.registry import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VIEW = "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme"
_TARGET = "org.apache.hadoop.hdfs.web.WebHdfsFileSystem"
_MOUNT_TABLE = "fs.viewfs.mounttable.default."
_log = logging.getLogger("headrace")
# The application that uses the default store, and the URL of the store. Hadoop keeps open file systems by scheme, so an
# application cannot change the store.
_used: tuple[str, str] | None = None


def register_bare_locations(spark: SparkSession) -> None:
    """Let a session open bare locations in the store that the environment names, if it names one.

    The store is opened when Spark opens the first location. A session without them is a usable one, so nothing here
    raises an error; a warning is logged.
    """
    if is_connect(spark):
        # Another client may have registered its server, and Spark's server keeps open file systems.
        return
    try:
        store, schemes = _default_store()
        if store is None or not _may_use(spark, store):
            return
        configure(spark, serve_default(store, lambda: open_store(store), server_host(spark)))
    except HeadraceError as error:
        _log.warning("checkpointLocation of Spark cannot be headrace:///path or yt:///path: %s", error.problem)
        return
    for scheme in schemes:
        spark.conf.set(f"fs.{scheme}.impl", _VIEW)
        spark.conf.set(f"fs.viewfs.overload.scheme.target.{scheme}.impl", _TARGET)
    spark.conf.set(f"{_MOUNT_TABLE}linkFallback", f"{PREFIX}{DEFAULT_KEY}/")


def _default_store() -> tuple[str | None, list[str]]:
    """Return the URL of the store of bare locations, and the schemes whose locations are in this store."""
    stores = {name: scheme.default_store() for name, scheme in CHECKPOINT_SCHEMES.items()}
    chosen = next(filter(None, stores.values()), None)
    # The working directory can change before the store is opened.
    address = None if chosen is None else absolute(chosen)
    others = [name for name, store in stores.items() if store not in (chosen, None)]
    if others:
        _log.info("%s:///path is in another store: use headrace.checkpoint for it", ", ".join(others))
    return address, [name for name, store in stores.items() if store == chosen]


def _may_use(spark: SparkSession, store: str) -> bool:
    """Return whether an application can use a store for bare locations."""
    global _used
    context: Any = spark.sparkContext
    if _used is not None and _used[0] == context.applicationId:
        if _used[1] != store:
            _log.warning(
                "bare checkpoint locations stay in the store that the environment named at first, until the session "
                "is stopped; use headrace.checkpoint(url, store=…) for another store"
            )
        return _used[1] == store
    mounted = dict(context._jsc.hadoopConfiguration().getPropsWithPrefix(_MOUNT_TABLE))
    if any("link" in name.lower() for name in mounted):
        _log.info("this session has a default mount table of its own, so bare checkpoint locations are not registered")
        return False
    _used = context.applicationId, store
    return True
