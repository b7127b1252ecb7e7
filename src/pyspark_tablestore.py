"""Found by Spark: the data source format ``tablestore``."""

from headrace.spark.sources import TablestoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
