"""Found by Spark: the data source format ``yt``."""

from headrace.spark.yt_source import YtDataSource as DefaultSource

__all__ = ["DefaultSource"]
