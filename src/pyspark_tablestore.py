"""Found by Spark: the data source format ``tablestore``."""

from headrace.spark.data_sources import data_source

DefaultSource = data_source("tablestore")
