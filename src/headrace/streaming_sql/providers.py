"""Which providers of ``CREATE TABLE … USING`` are headrace's own, and which read and write files."""

from __future__ import annotations

from headrace.formats.registry import FORMATS

HEADRACE_PROVIDERS = tuple(FORMATS)
QUEUE_PROVIDERS = tuple(name for name, each in FORMATS.items() if each.has_queues)
FILE_PROVIDERS = ("avro", "csv", "delta", "json", "orc", "parquet", "text", "xml")


def is_headrace(provider: str) -> bool:
    """Tell whether a provider is one of headrace's formats, in any case."""
    return provider.lower() in HEADRACE_PROVIDERS


def is_of_files(provider: str) -> bool:
    """Tell whether a provider reads and writes files by Spark's own sources, in any case."""
    return provider.lower() in FILE_PROVIDERS
