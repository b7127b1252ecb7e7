"""Settings of a session for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLLOWS_TRUNCATIONS = "spark.headrace.followsTruncations"
"""Set where a batch reads a stream of ``readAs=table``: the tables whose TRUNCATE is an error, as JSON. Of others, it
is a row. Without the setting, each TRUNCATE is an error. Tasks see it."""
USED_COLUMNS = "spark.headrace.usedColumns"
"""Set where a batch reads streams: the names of the columns that its query uses, in lower case, as JSON. Tasks read no
others, which are null, so that a change of another column does not stop the query."""


@contextmanager
def changed_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session, and restore them at the end."""
    before = {setting: spark.conf.get(setting, None) for setting in settings}
    try:
        for setting, value in settings.items():
            spark.conf.set(setting, value)
        yield
    finally:
        for setting, earlier in before.items():
            if earlier is None:
                spark.conf.unset(setting)
            else:
                spark.conf.set(setting, earlier)
