"""Spark Connect, where Spark's Java process is on a server: its sessions, and packages that have no other.

pyspark-client and databricks-connect bring a module pyspark without Spark's Java classes.
"""

from __future__ import annotations

import os
from collections.abc import Container
from importlib.metadata import packages_distributions
from typing import TYPE_CHECKING

from headrace.errors import MissingDependencyError
from headrace.support.extras import is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REMOTE = "spark.remote"


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect. Any other one has a Java process."""
    return "connect" in type(spark).__module__


def names_server(conf: Container[str]) -> bool:
    """Return whether the environment or these settings name a server for new sessions."""
    return _REMOTE in conf or not {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}.isdisjoint(os.environ)


def has_classes() -> bool:
    """Return whether the installed pyspark has Spark's Java classes, or finds those of SPARK_HOME."""
    from pyspark.util import is_remote_only

    # databricks-connect has the modules of pyspark that is_remote_only looks for.
    return not is_remote_only() and not is_installed("databricks.connect")


def providers() -> list[str]:
    """Return the installed packages that bring the module pyspark; empty for one that is no package of Python."""
    return sorted(set(packages_distributions().get("pyspark", ())))


def check_start(conf: Container[str] = ()) -> None:
    """Raise an error if there can be no new session: neither is a server named, nor can pyspark start Spark.

    Args:
        conf: the session's settings.

    Raises:
        MissingDependencyError: the installed pyspark has no Java classes.
    """
    if not names_server(conf) and not has_classes():
        raise MissingDependencyError(
            "the installed pyspark has no Java classes of Spark: it only connects to servers",
            received=f"pyspark of {', '.join(providers())}, and no address of a server",
            valid="SPARK_REMOTE=sc://host:port in the environment, or a setting spark.remote; with databricks-connect, "
            "your own DatabricksSession",
            remedy="to start Spark here, use an environment without this package: pip install 'headrace[spark]'",
        )
