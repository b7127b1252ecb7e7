"""Found by Spark: the data source format ``tablestore``."""

from headrace.spark.sources import data_source

DefaultSource = data_source("tablestore")
