"""The providers of ``CREATE TABLE … USING``: headrace's formats, and Spark's formats of files."""

from __future__ import annotations

from headrace.formats.registry import FORMATS

HEADRACE_PROVIDERS = tuple(FORMATS)
QUEUE_PROVIDERS = tuple(name for name, each in FORMATS.items() if each.has_queues)
FILE_PROVIDERS = ("avro", "csv", "delta", "json", "orc", "parquet", "text", "xml")
PACKAGES = {
    "avro": "org.apache.spark:spark-avro_2.13",
    "delta": "io.delta:delta-spark_2.13",
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
}
"""The packages of sources that are not part of Spark."""


def is_headrace(provider: str) -> bool:
    """Return whether a provider is one of headrace's formats. Names are case-insensitive."""
    return provider.lower() in HEADRACE_PROVIDERS


def is_of_files(provider: str) -> bool:
    """Return whether a provider is one of Spark's formats of files. Names are case-insensitive."""
    return provider.lower() in FILE_PROVIDERS
