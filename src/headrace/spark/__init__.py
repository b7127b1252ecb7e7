"""The thin binding to Spark: data sources, sinks, session, listener. Its import fails without pyspark."""

from headrace.support.extras import SPARK, check_extras

# All that needs Spark imports a module of this package, before it imports pyspark.
check_extras("Spark", SPARK)
