"""The tools that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.cli.consumer import consumer_details, registered
from headrace.cli.doctor import store_findings
from headrace.cli.environment_checks import environment_findings
from headrace.cli.mcp.sources import Sources
from headrace.cli.queue import queue_details, queue_summary
from headrace.cli.stream_progress import progress_facts, status_facts
from headrace.cli.table import table_details, table_summary
from headrace.cli.tunnel import tunnel_details, tunnel_summary
from headrace.inspect.querying import engine
from headrace.model.own_names import of_users
from headrace.ports import Store
from headrace.rows.json_rows import with_objects
from headrace.rows.shown_values import shown_rows
from headrace.support.instants import instant
from headrace.ui.query_page import MAX_RESULT_BYTES, MAX_SECONDS, type_name_or_text
from headrace.ui.stream_graph import Node, graph_of, guarantee_of

MOST_LISTED = 100
"""The most objects of a list: each can cost a call to the store."""
FEW_ROWS = 100
MOST_ROWS = 1000
MOST_SECONDS = 60.0
Kind = Literal["table", "queue", "tunnel", "consumer", "stream"]
Listed = Literal["store", "table", "queue", "tunnel", "consumer", "stream"]
StoreName = Annotated[
    str | None, Field(description="The store, as `list_objects` names it; needed if there are several.")
]
Search = Annotated[str, Field(description="A part of the name; empty for all.")]
Facts = dict[str, Any]


class ReadingTools:
    """The tools, which threads can share."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    @property
    def tools(self) -> list[Callable[..., Facts]]:
        return [self.list_objects, self.describe, self.lag, self.explain, self.last_error, self.query, self.doctor]

    def list_objects(self, kind: Listed = "store", search: Search = "", store: StoreName = None) -> Facts:
        """List the stores of this server, or the tables, queues, tunnels or consumers of a store, or all streams."""
        match kind:
            case "store":
                return {"stores": self._sources.names, "workspace": str(self._sources.directory.absolute())}
            case "stream":
                streams = [each for each in self._sources.registry.all() if search.lower() in each.name.lower()]
                return _listed(streams, status_facts)
        opened = self._sources.store(store)
        match kind:
            case "table":
                names = _matching(of_users(opened.tables()), search)
                return _listed(names, lambda name: table_summary(name, opened.table(name).describe()))
            case "queue":
                names = _matching(opened.queues(), search)
                return _listed(names, lambda name: queue_summary(opened.queue(name).describe()))
            case "tunnel":
                tunnels = [each for each in opened.tunnels() if search.lower() in each.name.lower()]
                return _listed(tunnels, lambda tunnel: tunnel_summary(tunnel.describe()))
            case "consumer":
                return _consumers(opened, "items", search)

    def describe(
        self,
        kind: Kind,
        name: Annotated[str, Field(description="The name; of a tunnel also its id.")],
        table: Annotated[str | None, Field(description="The table of a tunnel whose name is not unique.")] = None,
        store: StoreName = None,
    ) -> Facts:
        """Describe a table (columns, partitions, log), queue, tunnel (channels, lag), consumer or stream."""
        if kind == "stream":
            status = self._sources.registry.get(name)
            return {**status_facts(status), "script": status.script}
        opened = self._sources.store(store)
        match kind:
            case "table":
                return table_details(opened.table(name).describe())
            case "queue":
                return queue_details(opened.queue(name).describe())
            case "tunnel":
                return tunnel_details(opened.tunnel(name, table).describe())
            case "consumer":
                return consumer_details(opened.consumer(name), None)

    def lag(self, store: StoreName = None) -> Facts:
        """Return how far all streams, and the tunnels and consumers of a store, are behind, in rows and seconds."""
        streams = _listed(self._sources.registry.all(), progress_facts, "streams")
        if store is None and not self._sources.names:
            return streams
        opened = self._sources.store(store)
        tunnels = _listed(opened.tunnels(), lambda tunnel: tunnel_summary(tunnel.describe()), "tunnels")
        consumers = _consumers(opened, "consumers") if opened.capabilities.queues else {"consumers": []}
        cut = {**streams.get("cut", {}), **tunnels.get("cut", {}), **consumers.get("cut", {})}
        return {**streams, **tunnels, **consumers, **({"cut": cut} if cut else {})}

    def explain(self, stream: str) -> Facts:
        """Explain a stream, without Spark: sources, sink, guarantee, checkpoint and statements; no secrets.

        `headrace stream explain` also shows Spark's plan.
        """
        status = self._sources.registry.get(stream)
        graph = graph_of(status, self._sources.catalog)
        return {
            "stream": status.name,
            "sources": [_node_facts(node) for node in graph.sources],
            "sink": _node_facts(graph.sink),
            "guarantee": guarantee_of(status, self._sources.catalog),
            "checkpoint": status.checkpoint,
            "script": status.script,
        }

    def last_error(self, stream: Annotated[str | None, Field(description="A stream; by default all.")] = None) -> Facts:
        """Return the last error of a stream, or of each stream, with its remedy and its time."""
        registry = self._sources.registry
        streams = registry.all() if stream is None else [registry.get(stream)]
        endings = [(status, self._sources.history.last_error(status.name)) for status in streams]
        return {
            "errors": [
                {
                    "stream": status.name,
                    "state_now": status.state,
                    "time": instant(ending.time),
                    "error": ending.error,
                    "remedy": ending.remedy,
                }
                for status, ending in endings
                if ending is not None
            ]
        }

    def query(
        self,
        sql: Annotated[str, Field(description="One SELECT in DuckDB's dialect over tables and queues of the store.")],
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description="The maximum number of rows.")] = FEW_ROWS,
        seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS, description="The maximum duration.")] = MAX_SECONDS,
        store: StoreName = None,
    ) -> Facts:
        """Run one SELECT. It reads nothing but the tables and queues of the store, and changes nothing.

        A queue also has the columns "$tablet_index" and "$row_index". Conditions on key columns are fast.
        """
        result = engine.run(
            self._sources.store(store),
            sql,
            max_rows=limit,
            timeout_seconds=seconds,
            max_result_bytes=MAX_RESULT_BYTES,
            processes=self._sources.queries,
        )
        return {
            "columns": [{"name": field.name, "type": type_name_or_text(field.type)} for field in result.schema],
            "rows": with_objects(shown_rows(result.rows), result.schema),
            **({"cut": {"query": f"it has more than {result.rows.num_rows} rows"}} if result.cut else {}),
        }

    def doctor(
        self,
        table: Annotated[str | None, Field(description="Also check that this table can be followed.")] = None,
        store: StoreName = None,
    ) -> Facts:
        """Check the machine and a store for common problems. Each failed check has a remedy; nothing is repaired."""
        findings = environment_findings()
        if store is not None or self._sources.names:
            app = self._sources.app(store)
            assert app.store_url is not None
            findings += store_findings(app, app.store_url, table)
        return {"findings": [asdict(finding) for finding in findings]}


def _listed(found: Sequence[Any], facts: Callable[[Any], Facts], key: str = "items") -> Facts:
    """Return the first items of a list as records."""
    cut = {"cut": {key: f"the first {MOST_LISTED} of {len(found)}"}} if len(found) > MOST_LISTED else {}
    return {key: [facts(each) for each in found[:MOST_LISTED]], **cut}


def _consumers(store: Store, key: str, search: str = "") -> Facts:
    """Return the registrations of the first consumers of a store."""
    names = _matching(store.consumers(), search)
    facts: Facts = {key: registered(store, None, names[:MOST_LISTED])}
    if len(names) > MOST_LISTED:
        facts["cut"] = {key: f"those of the first {MOST_LISTED} of {len(names)} consumers"}
    return facts


def _node_facts(node: Node) -> Facts:
    return {"name": node.name, "format": node.provider, "options": dict(node.facts)}


def _matching(names: Sequence[str], search: str) -> list[str]:
    return [name for name in names if search.lower() in name.lower()]
