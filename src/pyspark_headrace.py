"""Found by Spark: the data source format ``headrace``."""

from headrace.spark.sources import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
