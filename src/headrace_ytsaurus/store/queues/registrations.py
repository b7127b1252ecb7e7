"""Registrations of consumers, and the offsets in a consumer's table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import UnsupportedError
from headrace_ytsaurus.store.catalog import check_path_in_queries
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.failures import translated
from headrace_ytsaurus.wire.types import YtColumn

_PARTITION = YtColumn.of("partition_index", "uint64", required=True)
_CLUSTER = YtColumn.of("queue_cluster", "string", sort_order="ascending")
_QUEUE = YtColumn.of("queue_path", "string", sort_order="ascending")
_SESSION = YtColumn.of("session_id", "string", sort_order="ascending")
_OFFSET = YtColumn.of("offset", "uint64", required=True)
# By default, proxies refresh registrations every ten seconds.
_SEEN_SECONDS, _PAUSE = 30.0, 0.2


def of_queue(connection: YtConnection, queue: str) -> list[tuple[str, bool]]:
    """Return the registered consumers of a queue: the path of each, and whether it is vital."""
    return [(consumer, vital) for _, consumer, vital in listed(connection, queue, None)]


def listed(connection: YtConnection, queue: str | None, consumer: str | None) -> list[tuple[str, str, bool]]:
    """Return registrations on this cluster: the paths of queue and consumer, and whether the consumer is vital.

    Pass a queue or a consumer: clusters may refuse to list all registrations.
    """
    return sorted(
        (_path(item["queue_path"]), _path(item["consumer_path"]), bool(item["vital"]))
        for item in _items(connection, queue, consumer)
        if _is_here(connection, item["queue_path"]) and _is_here(connection, item["consumer_path"])
    )


def vital_elsewhere(connection: YtConnection, queue: str) -> bool:
    """Return whether a vital consumer of another cluster is registered for a queue."""
    return any(
        bool(item["vital"]) and not _is_here(connection, item["consumer_path"])
        for item in _items(connection, queue, None)
    )


def register(connection: YtConnection, queue: str, consumer: str, *, vital: bool) -> None:
    """Register a consumer, and wait until the registration is listed: proxies refresh registrations periodically."""
    with translated(f"register consumer {consumer} for queue {queue}"):
        connection.client.register_queue_consumer(queue, consumer, vital=vital)
    deadline = time.monotonic() + _SEEN_SECONDS
    while (consumer, vital) not in of_queue(connection, queue) and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _items(connection: YtConnection, queue: str | None, consumer: str | None) -> list[Mapping[str, Any]]:
    with translated("list registrations"):
        found: list[Mapping[str, Any]] = connection.client.list_queue_consumer_registrations(
            queue_path=queue, consumer_path=consumer
        )
    return found


def _is_here(connection: YtConnection, path: Any) -> bool:
    return _cluster(path) in (None, cluster_name(connection))


def offsets(connection: YtConnection, consumer: str, queue: str, *, client: Any = None) -> dict[int, int]:
    """Return the offsets that a consumer has set in a queue, by partition."""
    cluster = cluster_name(connection)
    query = (
        f"[partition_index], [offset] from {check_path_in_queries(consumer)}"
        f" where [queue_cluster] = {_text(cluster)} and [queue_path] = {_text(queue)}"
    )
    rows = connection.select(query, [_PARTITION, _OFFSET], client=client)
    pairs = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
    return {int(partition): int(offset) for partition, offset in pairs}


def forget_queue(connection: YtConnection, table: str, queue: str) -> None:
    """Remove the rows of a queue from the table of a consumer or producer."""
    third = "partition_index" if connection.attribute(table, "treat_as_queue_consumer") else "session_id"
    key = (_CLUSTER, _QUEUE, _PARTITION if third == "partition_index" else _SESSION)
    names = ", ".join(f"[{column.name}]" for column in key)
    query = (
        f"{names} from {check_path_in_queries(table)}"
        f" where [queue_cluster] = {_text(cluster_name(connection))} and [queue_path] = {_text(queue)}"
    )
    rows = connection.select(query, key)
    if rows.num_rows:
        connection.delete(table, rows, key)


def cluster_name(connection: YtConnection) -> str:
    """Return the name of the cluster, a part of registrations and offsets."""
    address = connection.address
    if address not in _cluster_names:
        with translated("ask for the cluster's name"):
            _cluster_names[address] = str(connection.client.get("//sys/@cluster_name"))
    return _cluster_names[address]


_cluster_names: dict[Any, str] = {}


def _path(value: Any) -> str:
    return str(value).partition("//")[2] and "//" + str(value).partition("//")[2]


def _cluster(value: Any) -> str | None:
    cluster = getattr(value, "attributes", {}).get("cluster")
    if cluster is None and not str(value).startswith("//"):
        cluster = str(value).partition(":")[0]
    return None if cluster is None else str(cluster)


def _text(value: str) -> str:
    if any(char in value for char in '"\\\n'):
        raise UnsupportedError("queries of YTsaurus cannot name this path", received=repr(value))
    return f'"{value}"'
