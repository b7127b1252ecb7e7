"""Which providers of ``CREATE TABLE … USING`` are headrace's own, and which read and write files."""

from __future__ import annotations

HEADRACE_PROVIDERS = ("headrace", "tablestore", "yt")
QUEUE_PROVIDERS = ("headrace", "yt")
FILE_PROVIDERS = ("avro", "csv", "delta", "json", "orc", "parquet", "text", "xml")


def is_headrace(provider: str) -> bool:
    """Tell whether a provider is one of headrace's formats, in any case."""
    return provider.lower() in HEADRACE_PROVIDERS


def is_of_files(provider: str) -> bool:
    """Tell whether a provider reads and writes files by Spark's own sources, in any case."""
    return provider.lower() in FILE_PROVIDERS
