"""`checkpoint`: a checkpoint location in a store, in a form that Spark can use.

The driver serves the store's files by WebHDFS, a protocol of Spark's Hadoop client, and sets the server's address in
the session. No jar is needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.checkpoint_server.locations import SERVICE
from headrace.checkpoint_server.server import LOOPBACK, CheckpointServer, serve
from headrace.checkpoint_server.tokens import CLIENT_ID
from headrace.checkpoint_server.tokens import PATH as TOKEN_PATH
from headrace.errors import HeadraceError, OptionError
from headrace.formats.checkpoint_locations import ANY_VALID, VALID, StoreLocation, checkpoint_text, parse_location
from headrace.formats.registry import checkpoint_scheme
from headrace.ports import Store
from headrace.spark.connect import is_connect
from headrace.spark.masters import is_this_machine
from headrace.stores.registry import StoreAddress
from headrace.stores.registry import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST_VARIABLE = "HEADRACE_CHECKPOINT_HOST"
_OAUTH = "dfs.webhdfs.oauth2"
_SECRET_SETTING = f"{_OAUTH}.refresh.token"
_SPARK_REDACTION = "(?i)secret|password|token|access[.]?key"
_THIS_MACHINE = (LOOPBACK, "127.0.0.1", "::1")
_log = logging.getLogger("headrace")


def checkpoint(
    url: str | os.PathLike[str], store: Store | str | os.PathLike[str] | None = None, spark: SparkSession | None = None
) -> str:
    """Return a location that Spark can use for a checkpoint in a store.

    This process serves the directory to the session's driver and executors until it ends. The same directory of the
    same store has the same location in every process.

    Args:
        url: ``headrace:///path`` for a directory of ``store``; ``yt:///path`` for a directory of ``store``, or without
            it of the cluster that the environment's YT_PROXY names; ``postgresql:///path`` in the same way, for the
            PostgreSQL database that HEADRACE_STORE or libpq's environment names; ``yt://proxy/path``,
            ``yt+http://host:port/path`` or ``yt+https://host/path`` for a directory of that cluster. A directory, or a
            URL of one of Spark's file systems, is returned unchanged.
        store: the store, or its path or URL; by default the environment's HEADRACE_STORE. It must be omitted if
            ``url`` is not in a store.
        spark: the session that starts the query; by default the active session.

    Raises:
        OptionError: neither a store nor Spark can write to the URL, the store is unknown, or ``store`` is
            given for a location outside of stores.
        UnsupportedError: the store has no files.

    Examples:
        >>> location = headrace.checkpoint("headrace:///checkpoints/totals", store="shop", spark=spark)
        >>> location.endswith("/checkpoints/totals")
        True
    """
    text = checkpoint_text(url)
    location = parse_location(text)
    if location is None:
        if store is not None:
            raise OptionError(
                "a store is given, but this checkpoint location is not in a store",
                received=f"{text.partition(':')[0]}:…" if ":" in text else text,
                valid=VALID,
                remedy="use headrace:///path for a directory of the store, or omit store",
            )
        return text
    if isinstance(store, Store):
        return _served(location, store, spark)
    return _served(location, open_store(_store_of_url(location) or store or _default_store(location)), spark)


def sink_checkpoint(url: str, store: StoreAddress, spark: SparkSession) -> str:
    """Return the location of a checkpoint as `checkpoint` does, for a query that writes into a store.

    The checkpoint is in that store, with two exceptions: its URL names a cluster; or its URL is ``yt:///path``, the
    environment names a cluster, and the query writes into a store of another kind.
    """
    text = checkpoint_text(url)
    location = parse_location(text)
    if location is None:
        return text
    if location.proxy or checkpoint_scheme(location.scheme).replaces_sink(store.url):
        return checkpoint(text, spark=spark)
    return _served(location, store.open(), spark)


# Parts of Spark's errors if no file system of the session can open the checkpoint.
_NO_FILE_SYSTEM = (
    "No FileSystem for scheme",
    "CANNOT_LOAD_CHECKPOINT_FILE_MANAGER",
    "Wrong FS",
    "Relative path in absolute URI",
)
_CAUSE = re.compile(r"^Caused by: ([\w.$]+(?:: .*)?)$", re.MULTILINE)


@contextlib.contextmanager
def checkpoint_errors(checkpoint: str) -> Iterator[None]:
    """Raise `OptionError` instead of Spark's error for a checkpoint that none of its file systems can open."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        text = str(error)
        if not any(sign in text for sign in _NO_FILE_SYSTEM):
            raise
        # A URL may contain a password.
        causes = [cause for cause in _CAUSE.findall(text) if "://" not in cause]
        raise OptionError(
            f"Spark cannot open this checkpoint{f': {causes[-1][:200]}' if causes else ''}",
            received=f"{checkpoint.partition(':')[0][:40]}:…",
            valid=ANY_VALID,
            remedy="a path with a colon in it begins with a slash; other file systems than file:// may need a jar",
        ) from error


def _store_of_url(location: StoreLocation) -> str | None:
    """Return the URL of the store at the host of a checkpoint's URL; None if it has no host."""
    store_at = checkpoint_scheme(location.scheme).store_at
    return store_at(location.proxy) if location.proxy and store_at else None


def _default_store(location: StoreLocation) -> str:
    scheme = checkpoint_scheme(location.scheme)
    store = scheme.default_store()
    if not store:
        variables = " or ".join(scheme.variables)
        raise OptionError(
            "the store of the checkpoint is unknown",
            received=f"{location.scheme}://{location.path}",
            remedy=f"headrace.checkpoint(url, store=…), or set the environment variable {variables}",
        )
    return store


def _served(location: StoreLocation, store: Store, spark: SparkSession | None) -> str:
    session = spark or _active_session()
    server, url = serve(store, location.path, server_host(session))
    configure(session, server)
    return url


def _active_session() -> SparkSession:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None:
        raise OptionError(
            "a checkpoint in a store needs an active session",
            remedy="create the session first: spark = headrace.session(); or pass spark=…",
        )
    return active


def server_host(spark: SparkSession) -> str:
    """Return the host name by which the driver and the executors of a session reach this process."""
    given = os.environ.get(HOST_VARIABLE)
    if given:
        return given
    master = spark.conf.get("spark.master", "") or ""
    remote = is_connect(spark) and _connect_host(spark) not in _THIS_MACHINE
    if is_this_machine(master) and not remote:
        return LOOPBACK
    host = None if is_connect(spark) else spark.conf.get("spark.driver.host", None)
    if host is None:
        raise OptionError(
            "Spark runs on other machines, and the address of this process for them is unknown",
            received=master,
            remedy=f"set the environment variable {HOST_VARIABLE} to a host name or address of this machine",
        )
    return LOOPBACK if host in _THIS_MACHINE else host


def _connect_host(spark: SparkSession) -> str:
    return str(getattr(getattr(spark, "client", None), "host", ""))


def configure(spark: SparkSession, server: CheckpointServer) -> None:
    """Set the address of the checkpoint server and its secret in a session."""
    if spark.conf.get(f"{_OAUTH}.enabled", "false") == "true" and spark.conf.get(f"{_OAUTH}.client.id") != CLIENT_ID:
        raise OptionError(
            "this session uses WebHDFS with OAuth for another service",
            received=f"{_OAUTH}.client.id",
            remedy="use another session for queries with a checkpoint in a store: spark.newSession()",
        )
    address = server.address
    settings = {
        "dfs.nameservices": ",".join(dict.fromkeys([*_name_services(spark), SERVICE])),
        f"dfs.ha.namenodes.{SERVICE}": "driver",
        f"dfs.namenode.http-address.{SERVICE}.driver": address,
        f"dfs.client.failover.proxy.provider.{SERVICE}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
        f"{_OAUTH}.access.token.provider": (
            "org.apache.hadoop.hdfs.web.oauth2.ConfRefreshTokenBasedAccessTokenProvider"
        ),
        f"{_OAUTH}.client.id": CLIENT_ID,
        f"{_OAUTH}.refresh.url": f"http://{address}{TOKEN_PATH}",
        f"{_OAUTH}.refresh.token.expires.ms.since.epoch": "0",
        _SECRET_SETTING: server.access.refresh_token,
        f"{_OAUTH}.enabled": "true",
    }
    if is_connect(spark):
        # Hadoop keeps open file systems of the whole server by scheme and name, with the settings of the first client.
        settings["fs.webhdfs.impl.disable.cache"] = "true"
    if not _is_redacted(spark):
        _log.warning("spark.redaction.regex does not match %s: Spark's UI shows the secret", _SECRET_SETTING)
    for name, value in settings.items():
        spark.conf.set(name, value)


def _name_services(spark: SparkSession) -> list[str]:
    """Return the name services in a session's settings, such as that of the cluster's HDFS."""
    known = spark.conf.get("dfs.nameservices", None)
    if known is None and not is_connect(spark):
        known = spark.sparkContext._jsc.hadoopConfiguration().get("dfs.nameservices")
    return [name.strip() for name in (known or "").split(",") if name.strip()]


def _is_redacted(spark: SparkSession) -> bool:
    pattern = spark.conf.get("spark.redaction.regex", _SPARK_REDACTION) or ""
    try:
        return re.search(pattern, _SECRET_SETTING) is not None
    except re.error:
        # A pattern of Java that is not valid in Python.
        return True
