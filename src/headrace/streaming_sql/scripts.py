"""Definitions as texts of statements, for the workspace and for users. They contain no secrets in clear text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from headrace.options.secrets import masked
from headrace.sql_text.lexer import quote, quote_name
from headrace.streaming_sql.catalog import ScanDefinition

_PLAIN_KEY = re.compile(r"[A-Za-z_]\w*(?:[.-]\w+)*", re.ASCII)


def options_text(options: Mapping[str, str]) -> str:
    """Return ``key='value', …``."""
    return ", ".join(
        f"{name if _PLAIN_KEY.fullmatch(name) else quote(name)}={quote(value)}"
        for name, value in masked(options).items()
    )


def _options_clause(options: Mapping[str, str]) -> str:
    return f" OPTIONS ({options_text(options)})" if options else ""


def scan_text(scan: ScanDefinition) -> str:
    """Return the ``CREATE SCAN`` statement of a scan."""
    table = ".".join(quote_name(part) for part in scan.table.split("."))
    return f"CREATE SCAN {quote_name(scan.name)} ON {table} USING {scan.kind}{_options_clause(scan.options)}"


def table_text(
    name: str, columns: str | None, provider: str, options: Mapping[str, str], partition_by: Sequence[str] = ()
) -> str:
    """Return the ``CREATE TABLE`` statement of a table."""
    listed = "" if columns is None else f" ({columns})"
    divided = f" PARTITIONED BY ({', '.join(partition_by)})" if partition_by else ""
    return f"CREATE TABLE {quote_name(name)}{listed} USING {provider}{divided}{_options_clause(options)}"


def stream_text(name: str, options: Mapping[str, str], body: str, *, replace: bool = False) -> str:
    """Return the ``CREATE STREAM`` statement of a stream."""
    verb = "CREATE OR REPLACE STREAM" if replace else "CREATE STREAM"
    return f"{verb} {quote_name(name)}{_options_clause(options)}\n{body}"


def script_of(scans: Iterable[ScanDefinition], stream: str) -> str:
    """Return a script that creates the scans of a stream and starts it."""
    return ";\n".join((*(scan_text(scan) for scan in scans), stream)) + ";\n"
