"""The commands of queues and their consumers: registering, pulling, advancing."""

from __future__ import annotations

from typing import Any

from yt import yson

from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TIMESTAMP
from headrace.stores.embedded.for_servers import Database, EmbeddedQueue, catalog
from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters, number_of
from headrace_ytsaurus.endpoint.queues import consumer_rows, registration_rows
from headrace_ytsaurus.endpoint.queues.consumer_rows import ConsumerRow
from headrace_ytsaurus.endpoint.queues.pages import addressed, columns_of_queue, read_page
from headrace_ytsaurus.endpoint.queues.registration_rows import RegistrationKey, RegistrationRow
from headrace_ytsaurus.endpoint.queues.trimming import update_trimming
from headrace_ytsaurus.endpoint.tables.row_changes import ConsumerChange
from headrace_ytsaurus.endpoint.tables.row_sources import reading
from headrace_ytsaurus.endpoint.tables.state import Table, TableKind, find_table
from headrace_ytsaurus.endpoint.values import with_attributes
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson import documents

DEFAULT_ROWS = 1000
DEFAULT_WEIGHT = 16 << 20
_LARGEST_UNSIGNED = (1 << 64) - 1
_LARGEST_INDEX = (1 << 40) - 1
_SUFFIX = ".yt.yandex.net"


def find_queue(context: Context, parameters: Parameters, name: str = "queue_path") -> Table:
    """Return the queue of a parameter."""
    path = parameters.path(name)
    _check_cluster(context.cluster.name, path)
    table = find_table(context.cypress, path)
    table.require_dynamic()
    if table.kind is not TableKind.QUEUE:
        raise refused(f"{table.name} is not a queue: it is sorted", valid="an ordered dynamic table")
    return table


def _consumer(cypress: Cypress, parameters: Parameters) -> Table:
    path = parameters.path("consumer_path")
    _check_unnamed(path)
    table = find_table(cypress, path)
    if table.kind is not TableKind.CONSUMER:
        raise refused(
            f"{table.name} is not a queue consumer",
            remedy="create it with the type queue_consumer, or with the attribute treat_as_queue_consumer",
        )
    return table


def _check_unnamed(path: YPath) -> None:
    """Raise an error for a named consumer: in this endpoint each consumer is a table."""
    if "queue_consumer_name" in path.attributes:
        raise refused(
            "Queue consumer name is not supported for consumer schema",
            received=f"queue_consumer_name={path.attributes['queue_consumer_name']} of {path.text}",
            remedy="create a queue_consumer for each",
        )


def _cluster_of(own: str, path: YPath) -> str:
    return (path.cluster or own).removesuffix(_SUFFIX)


def _check_cluster(own: str, path: YPath) -> None:
    cluster = _cluster_of(own, path)
    if cluster != own:
        raise refused(
            f'Queue cluster "{cluster}" was not found for path {path.text}',
            valid=own,
            remedy="use a queue of this cluster: the endpoint has no access to others",
        )


# -- registrations ----------------------------------------------------------------------------------------


def register_queue_consumer(context: Context, parameters: Parameters, body: bytes) -> None:
    """Register a consumer for a queue. A queue of another cluster need not exist."""
    key = _registration(context, parameters, must_be_there=True)
    parameters.value("vital")
    vital = parameters.flag("vital")
    partitions = parameters.sequence("partitions", None)
    if partitions is not None:
        partitions = [number_of(each, "parameter /partitions", least=0) for each in partitions]
    with context.database.write() as connection:
        registration_rows.write(connection, RegistrationRow(key, vital, partitions), context.cluster.name)
        update_trimming(context, key.queue)


def unregister_queue_consumer(context: Context, parameters: Parameters, body: bytes) -> None:
    """Delete a registration, if it exists."""
    key = _registration(context, parameters, must_be_there=False)
    with context.database.write() as connection:
        registration_rows.delete(connection, key, context.cluster.name)
        update_trimming(context, key.queue)


def _registration(context: Context, parameters: Parameters, *, must_be_there: bool) -> RegistrationKey:
    ends = []
    for name in ("queue_path", "consumer_path"):
        path = parameters.path(name)
        _check_unnamed(path)
        cluster = _cluster_of(context.cluster.name, path)
        if must_be_there and cluster == context.cluster.name:
            find_table(context.cypress, path)
        ends += [cluster, _physical(context, path)]
    return RegistrationKey(*ends)


def _physical(context: Context, path: YPath) -> str:
    """Return a path with its links resolved; the path itself if it does not resolve."""
    if _cluster_of(context.cluster.name, path) != context.cluster.name:
        return path.node.text
    try:
        return context.cypress.find(path.node).path
    except YtError:
        return path.node.text


def list_queue_consumer_registrations(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the registrations of a queue, of a consumer, or all."""
    wanted = [
        None if path is None else (_cluster_of(context.cluster.name, path), _physical(context, path))
        for path in (parameters.path("queue_path", None), parameters.path("consumer_path", None))
    ]
    with context.database.read() as connection:
        found = registration_rows.rows(connection, context.cluster.name)
    return Answer.structured(
        [
            {
                "queue_path": _reference(row.key.queue_cluster, row.key.queue),
                "consumer_path": _reference(row.key.consumer_cluster, row.key.consumer),
                "vital": row.vital,
                "partitions": row.partitions,
            }
            for row in found
            if wanted[0] in (None, row.key[:2]) and wanted[1] in (None, row.key[2:])
        ]
    )


def _reference(cluster: str, path: str) -> Any:
    return with_attributes(path, {"cluster": cluster})


# -- reading ----------------------------------------------------------------------------------------------


def pull_queue(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return rows of one partition of a queue from an offset."""
    queue = find_queue(context, parameters)
    return _pulled(context.database, parameters, queue, parameters.number("offset", least=0, most=_LARGEST_UNSIGNED))


def pull_queue_consumer(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return rows of a queue for a consumer, from a given offset or the consumer's own."""
    consumer = _consumer(context.cypress, parameters)
    path = parameters.path("queue_path")
    cluster = _cluster_of(context.cluster.name, path)
    name = _physical(context, path)
    key = RegistrationKey(cluster, name, context.cluster.name, consumer.name)
    with context.database.read() as connection:
        registered = registration_rows.exists(connection, key, context.cluster.name)
    if not registered:
        raise YtError(
            Code.AUTHORIZATION,
            f"Consumer {consumer.name} is not registered for queue {path.text}",
            remedy="register it with register_queue_consumer",
            attributes={
                "raw_queue": f"{cluster}:{path.text}",
                "raw_consumer": f"{context.cluster.name}:{consumer.name}",
            },
        )
    queue = find_queue(context, parameters)
    index = parameters.number("partition_index", least=0)
    queue.tablet(index)
    offset = parameters.number("offset", None, least=0, most=_LARGEST_UNSIGNED)
    if offset is None:
        consumer.require_mounted(reading=True)
        with reading(context, parameters) as view:
            offset = _offset(view, context, consumer, cluster, queue.name, index) or 0
    return _pulled(context.database, parameters, queue, offset)


def _pulled(database: Database, parameters: Parameters, queue: Table, offset: int) -> Answer:
    index = parameters.number("partition_index")
    queue.tablet(index)
    rows = parameters.number("max_row_count", DEFAULT_ROWS)
    weight = parameters.number("max_data_weight", DEFAULT_WEIGHT)
    for name, value in (("max_row_count", rows), ("max_data_weight", weight)):
        if value <= 0:
            raise refused(f"{name} is non-positive", received=str(value))
    queue.require_mounted(index, reading=True)
    handle = EmbeddedQueue(database, queue.name)
    page = read_page(handle, index, min(offset, _LARGEST_INDEX), min(rows, _LARGEST_INDEX), weight)
    return Answer.rows([addressed(page, queue)], columns_of_queue(queue), start_row_index=page.first)


# -- advancing --------------------------------------------------------------------------------------------


def advance_queue_consumer(context: Context, parameters: Parameters, body: bytes) -> None:
    """Set a consumer's offset in one partition. If an old offset is given, it must be the current one."""
    consumer = _consumer(context.cypress, parameters)
    path = parameters.path("queue_path")
    index = parameters.number("partition_index", least=0, most=_LARGEST_UNSIGNED)
    old = parameters.number("old_offset", None)
    new = parameters.number("new_offset", least=0, most=_LARGEST_UNSIGNED)
    cluster, name = _cluster_of(context.cluster.name, path), _physical(context, path)
    meta = None
    if not parameters.flag("client_side"):
        meta = _meta_at(context, parameters, path, index, new)
    with reading(context, parameters) as view:
        current = _offset(view, context, consumer, cluster, name, index)
    if old is not None and (current or 0) != old:
        raise _conflict(consumer, index, old, current or 0)
    seen = {}
    if context.tablet_transactions.of(parameters) is not None:
        seen = {(cluster, name, index): current}
    row = ConsumerRow(cluster, name, index, new, meta)
    context.tablet_transactions.write(parameters, [ConsumerChange.of(consumer, [row], seen=seen)])


def _offset(view: Database, context: Context, consumer: Table, cluster: str, queue: str, index: int) -> int | None:
    with view.read() as connection:
        consumer_id = catalog.find(connection, consumer.name, "consumer")
        return consumer_rows.offset(connection, consumer_id, cluster, queue, index, context.cluster.name)


def _conflict(consumer: Table, index: int, expected: int, found: int) -> YtError:
    return YtError(
        Code.CONSUMER_OFFSET_CONFLICT,
        f"Offset conflict at partition {index} of consumer {consumer.name}:"
        f" expected offset {expected}, found offset {found}",
        attributes={
            "partition": index,
            "consumer": consumer.name,
            "expected_offset": expected,
            "current_offset": found,
            "current_offset_timestamp": 0,
        },
    )


def _meta_at(context: Context, parameters: Parameters, path: YPath, index: int, offset: int) -> bytes | None:
    """Return the metadata of an offset for a consumer's row, None if the rows around it do not exist."""
    try:
        queue = find_queue(context, parameters)
    except YtError as error:
        raise YtError(Code.GENERIC, "Failed to resolve queue path", received=path.text, inner=[error]) from None
    if CUMULATIVE_DATA_WEIGHT not in {column.name for column in queue.schema.columns} or not offset:
        return None
    handle = EmbeddedQueue(context.database, queue.name)
    bounds = handle.bounds().get(index)
    if bounds is None or not bounds.lower < offset <= bounds.upper:
        return None
    page = addressed(read_page(handle, index, offset - 1, 2), queue)
    meta: dict[str, Any] = {"cumulative_data_weight": page.column(CUMULATIVE_DATA_WEIGHT)[0].as_py()}
    if page.num_rows > 1 and TIMESTAMP in page.schema.names:
        meta["offset_timestamp"] = yson.YsonUint64(int(page.column(TIMESTAMP)[1].as_py()))
    return documents.dumps(meta, text=False)
