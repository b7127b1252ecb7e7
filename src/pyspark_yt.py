"""Found by Spark: the data source format ``yt``."""

from headrace.spark.sources import YtDataSource as DefaultSource

__all__ = ["DefaultSource"]
