"""The graph of a stream: its sources, its statement and its sink, from the definitions of the workspace."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.options.secrets import masked
from headrace.sql_text.lexer import tokenize
from headrace.streaming_sql.catalog import Catalog, ScanDefinition, TableDefinition, overlaid
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.store_guarantees import store_guarantee
from headrace.streaming_sql.stream_options import read_stream_options
from headrace.streaming_sql.stream_registry import StreamStatus

_SHOWN_OPTIONS = (
    "store",
    "endpoint",
    "cluster",
    "table",
    "table.name",
    "queue",
    "tunnel",
    "tunnel.id",
    "consumer",
    "readas",
)


@dataclass(frozen=True)
class Node:
    """A source or sink: its name in the script, the format, and facts such as the tunnel. Secrets are masked.

    Attributes:
        table, queue: the table or the queue of the page's own store that it is; empty for others.
    """

    name: str
    provider: str
    facts: Mapping[str, str]
    table: str = ""
    queue: str = ""


@dataclass(frozen=True)
class StreamGraph:
    """The sources of a stream, its sink, the first word of its statement, and its trigger."""

    sources: tuple[Node, ...]
    sink: Node
    verb: str


def graph_of(status: StreamStatus, catalog: Catalog, store: str | None = None) -> StreamGraph:
    """Return the graph of a stream. A script that cannot be read has a sink and no sources.

    Args:
        store: the address of the store whose pages the graph can link.
    """
    try:
        statements = parse(status.script)
    except HeadraceError:
        statements = []
    created = next((each for each in statements if isinstance(each, st.CreateStream)), None)
    sink = _node(status.target, status.target, catalog, {}, store)
    if created is None:
        return StreamGraph((), sink, "")
    tokens = [token.text.strip("`").lower() for token in tokenize(created.body.reads.text).tokens]
    words = set(tokens)
    # A column may have the name of a table.
    relations = {name for before, name in itertools.pairwise(tokens) if before in ("from", "join", "using")}
    scans = [each for each in statements if isinstance(each, st.CreateScan) and str(each.name).lower() in words]
    sources = [_node(str(each.name), str(each.table), catalog, each.options, store) for each in scans]
    covered = {str(each.name).lower() for each in scans}
    # One look-up for each name: a workspace can have many tables.
    named = (catalog.find_table(name) for name in sorted(relations - covered - {status.target.lower()}))
    sources += [_node(each.name, each.name, catalog, {}, store) for each in named if each is not None]
    verb = created.body.text.split(maxsplit=2)
    return StreamGraph(tuple(sources), sink, " ".join(verb[:2]).upper())


def guarantee_of(status: StreamStatus, catalog: Catalog) -> str | None:
    """Return the guarantee of a stream's sink; None if its store cannot be asked.

    It opens the stores of the stream, so it may take a while.
    """
    try:
        target = catalog.find_table(status.target)
        created = next((each for each in parse(status.script) if isinstance(each, st.CreateStream)), None)
        if target is None or created is None:
            return None
        options = read_stream_options(status.name, created.options)
        scans = [ScanDefinition.from_statement(e) for e in parse(status.script) if isinstance(e, st.CreateScan)]
        try:
            return store_guarantee(target, options.sink, catalog, scans)
        except HeadraceError:
            # A source may need a secret of another session. The sink's part of the answer does not.
            return store_guarantee(target, options.sink, catalog, ())
    except HeadraceError:
        return None


def _node(name: str, table: str, catalog: Catalog, over: Mapping[str, str], store: str | None) -> Node:
    found: TableDefinition | None
    try:
        found = catalog.find_table(table)
    except HeadraceError:
        found = None
    if found is None:
        return Node(name, "Spark", {})
    options = {key.lower(): value for key, value in masked(overlaid(found.options, over)).items()}
    facts = {key: options[key] for key in _SHOWN_OPTIONS if options.get(key)}
    if store is None or not _same_store(options.get("store", ""), store):
        return Node(name, found.provider, facts)
    queue = options.get("queue", "")
    return Node(name, found.provider, facts, "" if queue else options.get("table", ""), queue)


def _same_store(option: str, address: str) -> bool:
    """Return whether an option names the store with an address; of a directory, in whatever form."""
    if "://" in option.removeprefix("file://"):
        return option == address
    return bool(option) and Path(option.removeprefix("file://")).resolve() == Path(address.removeprefix("file://"))
