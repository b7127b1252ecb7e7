"""Tables in Cypress: what is made and removed with their nodes, and their attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.endpoints.ytsaurus import queue_agent, static_tables, table_objects, table_state
from headrace.endpoints.ytsaurus.attributes import attribute as attribute_of
from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.ids import ObjectType
from headrace.endpoints.ytsaurus.node_types import NOTHING, Node, NodeType, register
from headrace.endpoints.ytsaurus.table_state import MOUNTED, UNMOUNTED, Kind, Schema, Table, new_tablets
from headrace.endpoints.ytsaurus.tablets import cell_of, pivots_of, tablet_value
from headrace.endpoints.ytsaurus.values import with_attributes
from headrace.stores.embedded import queues
from headrace.stores.embedded.queue import EmbeddedQueue
from headrace.stores.embedded.tables import EmbeddedTable
from headrace.wire.yson import rows_decoding
from headrace.wire.ytsaurus.paths import YPath, parse_path
from headrace.wire.ytsaurus.types import columns_of, schema_of

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.commands import Context

CONSUMER_ALIAS, PRODUCER_ALIAS = "queue_consumer", "queue_producer"


def _keyed(columns: list[dict[str, Any]]) -> Schema:
    return Schema(columns_of(columns), unique_keys=True)


_STRING_KEY = {"type": "string", "required": True, "sort_order": "ascending"}
CONSUMER_SCHEMA = _keyed(
    [
        {"name": "queue_cluster", **_STRING_KEY},
        {"name": "queue_path", **_STRING_KEY},
        {"name": "partition_index", "type": "uint64", "required": True, "sort_order": "ascending"},
        {"name": "offset", "type": "uint64", "required": True},
        {"name": "meta", "type": "any"},
    ]
)
PRODUCER_SCHEMA = _keyed(
    [
        {"name": "queue_cluster", **_STRING_KEY},
        {"name": "queue_path", **_STRING_KEY},
        {"name": "session_id", **_STRING_KEY},
        {"name": "sequence_number", "type": "int64", "required": True},
        {"name": "epoch", "type": "int64", "required": True},
        {"name": "user_meta", "type": "any"},
        {"name": "system_meta", "type": "any"},
    ]
)
REGISTRATIONS_SCHEMA = _keyed(
    [
        {"name": "queue_cluster", **_STRING_KEY},
        {"name": "queue_path", **_STRING_KEY},
        {"name": "consumer_cluster", **_STRING_KEY},
        {"name": "consumer_path", **_STRING_KEY},
        {"name": "vital", "type": "boolean"},
        {"name": "partitions", "type": "any"},
    ]
)
REGISTRATIONS_PATH = "//sys/queue_agents/consumer_registrations"
_MAX_TABLETS = 10_000
_FIXED: Mapping[str, Any] = {
    "atomicity": "full",
    "commit_ordering": "weak",
    "optimize_for": "lookup",
    "in_memory_mode": "none",
    "compression_codec": "none",
    "erasure_codec": "none",
    "replication_factor": 1,
    "primary_medium": "default",
    "tablet_cell_bundle": "default",
    "chunk_count": 1,
}


def find_table(context: Context, path: YPath | str, transaction: str | None = None) -> Table:
    """Return the table that a path leads to.

    Raises:
        YtError: nothing is there, or something else than a table.
    """
    parsed = parse_path(path) if isinstance(path, str) else path
    node = context.cypress.find(parsed.node, transaction)
    with context.cluster.database.read() as connection:
        return table_state.load(connection, node)


class TableNode(NodeType):
    """Tables of all kinds."""

    name = "table"
    object_type = ObjectType.TABLE
    aliases = (CONSUMER_ALIAS, PRODUCER_ALIAS)

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        kept = dict(attributes)
        table = self._new(node, kept, alias)
        with context.cluster.database.write() as connection:
            table_state.save(connection, table)
            table_objects.create(connection, table, context.cluster.name)
            _refuse_export(kept)
            config = kept.pop("auto_trim_config", None)
            if config is not None:
                _set_auto_trim(context, table, config)
        return kept

    def _new(self, node: Node, kept: dict[str, Any], alias: str) -> Table:
        """Return a new table; takes from the attributes what is not to be kept as such."""
        given = kept.pop("schema", None)
        dynamic = bool(kept.pop("dynamic", False))
        count, pivots = kept.pop("tablet_count", None), kept.pop("pivot_keys", None)
        if alias == CONSUMER_ALIAS or (kept.get("treat_as_queue_consumer") and dynamic):
            schema = CONSUMER_SCHEMA if given is None else Schema.parse(given).with_unique_keys
            _check_columns(schema, CONSUMER_SCHEMA, optional=("meta",), what="queue consumer")
            kept["treat_as_queue_consumer"] = True
            return self._with_state(node, Kind.CONSUMER, schema, alias)
        if alias == PRODUCER_ALIAS or (kept.get("treat_as_queue_producer") and dynamic):
            schema = PRODUCER_SCHEMA if given is None else Schema.parse(given).with_unique_keys
            _check_columns(schema, PRODUCER_SCHEMA, optional=("user_meta", "system_meta"), what="queue producer")
            kept["treat_as_queue_producer"] = True
            return self._with_state(node, Kind.PRODUCER, schema, alias)
        if not dynamic:
            schema = Schema((), strict=False) if given is None else Schema.parse(given)
            return Table(node, Kind.STATIC, schema, ())
        if given is None or not (schema := Schema.parse(given)).columns:
            raise refused(f'"schema" is mandatory for dynamic tables, and {node.path} has none')
        if not schema.strict:
            raise refused("The schema of a dynamic table must be strict")
        schema = schema.with_unique_keys
        kind = Kind.SORTED if schema.keys else Kind.QUEUE
        if kind is Kind.SORTED and len(schema.keys) == len(schema.columns):
            raise refused("There must be at least one non-key column in a sorted dynamic table")
        if pivots is not None:
            given_pivots = pivots_of(pivots, schema)
            return Table(node, kind, schema, new_tablets(len(given_pivots), pivots=given_pivots))
        number = 1 if count is None else count
        if not isinstance(number, int) or not 1 <= number <= _MAX_TABLETS:
            raise refused("Tablet count is out of range", received=repr(number), valid=f"1 to {_MAX_TABLETS}")
        if kind is Kind.SORTED and number > 1:
            raise refused("A sorted table gets its tablets by pivot_keys", received=f"tablet_count={number}")
        return Table(node, kind, schema, new_tablets(number))

    def _with_state(self, node: Node, kind: Kind, schema: Schema, alias: str) -> Table:
        # Those made by their own name are mounted at once.
        return Table(node, kind, schema, new_tablets(1, UNMOUNTED if alias == self.name else MOUNTED))

    def remove(self, context: Context, node: Node) -> None:
        with context.cluster.database.write() as connection:
            table = table_state.load(connection, node)
            if table.kind is Kind.REGISTRATIONS:
                raise refused(f"{node.path} cannot be removed")
            table_objects.drop(connection, table, context.cluster.name)
            static_tables.drop(connection, node.id)
            table_state.forget(connection, node)

    def move(self, context: Context, node: Node, source: str) -> None:
        with context.cluster.database.write() as connection:
            table_objects.rename(connection, table_state.load(connection, node), source, context.cluster.name)

    def copy(self, context: Context, node: Node, source: Node) -> None:
        with context.cluster.database.write() as connection:
            table = table_state.load(connection, source)
            made = dataclasses.replace(table, node=node)
            if table.kind is Kind.STATIC:
                static_tables.copy(connection, source.id, node.id)
            elif any(tablet.state == MOUNTED for tablet in table.tablets):
                raise refused(f"Cannot copy {source.path}: it is mounted", remedy="unmount or freeze it")
            else:
                pivots = [tablet.pivot for tablet in table.tablets]
                made = dataclasses.replace(made, tablets=new_tablets(len(pivots), pivots=pivots))
                table_objects.create(connection, made, context.cluster.name)
                table_objects.copy(connection, table, made, context.cluster.database)
            table_state.save(connection, made)

    # -- attributes -------------------------------------------------------------------------------------

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        with context.cluster.database.read() as connection:
            table = table_state.load(connection, node)
            if name in _OF_TABLES:
                return _OF_TABLES[name](context, table)
            if name in queue_agent.ATTRIBUTES:
                banned = attribute_of(context, node, "queue_agent_banned") not in (NOTHING, False)
                return queue_agent.attribute(context, table, name, banned=banned)
        return _FIXED.get(name, NOTHING)

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        _refuse_export({name: value})
        with context.cluster.database.write() as connection:
            table = table_state.load(connection, node)
            if name == "auto_trim_config":
                _set_auto_trim(context, table, value)
                return True
            if name == "treat_as_queue_consumer" and bool(value) != (table.kind is Kind.CONSUMER):
                make_consumer(context, table, wanted=bool(value))
        return False

    def remove_attribute(self, context: Context, node: Node, name: str) -> bool:
        if name != "auto_trim_config":
            return False
        with context.cluster.database.write() as connection:
            _set_auto_trim(context, table_state.load(connection, node), None)
        return True


def make_consumer(context: Context, table: Table, *, wanted: bool) -> None:
    """Turn a sorted dynamic table without rows into a queue consumer.

    Raises:
        YtError: it has rows, or other columns; or a consumer is to become something else.
    """
    if table.kind is not Kind.SORTED or not wanted or _row_count(context, table):
        raise refused(
            "Only a sorted dynamic table without rows becomes a queue consumer",
            received=f"treat_as_queue_consumer={wanted} for {table.name}",
            remedy="create it with the attribute treat_as_queue_consumer",
        )
    _check_columns(table.schema, CONSUMER_SCHEMA, optional=("meta",), what="queue consumer")
    with context.cluster.database.write() as connection:
        table_objects.drop(connection, table, context.cluster.name)
        made = dataclasses.replace(table, kind=Kind.CONSUMER)
        table_objects.create(connection, made, context.cluster.name)
        table_state.save(connection, made)


def make_dynamic(context: Context, table: Table) -> None:
    """Turn a static table into a dynamic one with the same rows, which is not mounted."""
    schema = table.schema.with_unique_keys
    if not schema.columns or not schema.strict:
        raise refused(f"{table.name} needs a strict schema to become dynamic")
    database = context.cluster.database
    with database.write() as connection:
        made = Table(table.node, Kind.SORTED if schema.keys else Kind.QUEUE, schema, new_tablets(1))
        pieces = static_tables.pieces(connection, table.node.id)
        table_objects.create(connection, made, context.cluster.name)
        table_state.save(connection, made)
        for piece in pieces:
            rows = rows_decoding.decode_rows(piece, schema.columns)
            if made.kind is Kind.QUEUE:
                EmbeddedQueue(database, made.name).append(rows)
            else:
                EmbeddedTable(database, made.name).put(schema.layout.to_stored(rows))
        static_tables.drop(connection, table.node.id)


def _set_auto_trim(context: Context, table: Table, config: Any) -> None:
    with context.cluster.database.write() as connection:
        table_objects.set_auto_trim(connection, table, config)
        options = {key: value for key, value in table.options.items() if key != "auto_trim_config"}
        if config is not None:
            options["auto_trim_config"] = dict(config)
        table_state.save(connection, dataclasses.replace(table, options=options))


def _refuse_export(attributes: Mapping[str, Any]) -> None:
    if attributes.get("static_export_config"):
        raise refused(
            "This endpoint does not export queues to static tables",
            received="static_export_config",
            remedy="read the queue by a consumer, and write_table what it gives",
        )


def _check_columns(schema: Schema, wanted: Schema, *, optional: tuple[str, ...], what: str) -> None:
    """Raise unless a schema has the columns of a consumer or producer, of which some may be left out."""
    given = {column.name: (column.yt, column.sort_order) for column in schema.columns}
    needed = {column.name: (column.yt, column.sort_order) for column in wanted.columns}
    wrong = list(given.keys() - needed.keys())
    wrong += [name for name in needed if name not in optional and given.get(name) != needed[name]]
    if wrong:
        raise refused(f"This is not the schema of a {what}", received=f"column {min(wrong)!r}", valid=", ".join(needed))


def _row_count(context: Context, table: Table) -> int:
    with context.cluster.database.read() as connection:
        if table.kind is Kind.STATIC:
            return static_tables.row_count(connection, table.node.id)
        if table.kind is Kind.QUEUE:
            state = queues.load(connection, table.name)
            return sum(each.bounds.rows for each in queues.partitions(connection, state))
        if table.kind is Kind.SORTED:
            found = connection.execute(
                "SELECT ifnull(sum(p.rows), 0) FROM partition p JOIN object o ON o.id = p.object"
                " WHERE o.name = ? AND p.open",
                (table.name,),
            )
            return int(next(found)[0])
    return 0


def _size(context: Context, table: Table) -> int:
    with context.cluster.database.read() as connection:
        if table.kind is Kind.QUEUE:
            state = queues.load(connection, table.name)
            return sum(each.bounds.bytes for each in queues.partitions(connection, state))
        if table.kind is Kind.STATIC:
            return static_tables.size(connection, table.node.id)
    return 0


def _schema_value(context: Context, table: Table) -> Any:
    attributes = {"strict": table.schema.strict, "unique_keys": table.schema.unique_keys}
    return with_attributes(schema_of(table.schema.columns), attributes)


def _tablets(context: Context, table: Table) -> Any:
    if not table.dynamic:
        return NOTHING
    with context.cluster.database.read() as connection:
        bounds = None
        if table.kind is Kind.QUEUE:
            bounds = [each.bounds for each in queues.partitions(connection, queues.load(connection, table.name))]
    cell = cell_of(context)
    return [
        tablet_value(table, number, None if bounds is None else bounds[number], cell)
        for number in range(len(table.tablets))
    ]


_OF_TABLES: Mapping[str, Callable[[Context, Table], Any]] = {
    "schema": _schema_value,
    "schema_mode": lambda context, table: "strong" if table.schema.columns else "weak",
    "dynamic": lambda context, table: table.dynamic,
    "sorted": lambda context, table: bool(table.schema.keys),
    "key_columns": lambda context, table: [column.name for column in table.schema.keys],
    "sorted_by": lambda context, table: [column.name for column in table.schema.keys] or NOTHING,
    "row_count": _row_count,
    "chunk_row_count": _row_count,
    "uncompressed_data_size": _size,
    "compressed_data_size": _size,
    "data_weight": _size,
    "tablet_count": lambda context, table: len(table.tablets) if table.dynamic else NOTHING,
    "tablet_state": lambda context, table: table.state,
    "actual_tablet_state": lambda context, table: table.state,
    "expected_tablet_state": lambda context, table: table.state,
    "tablets": _tablets,
    "pivot_keys": lambda context, table: (
        [list(tablet.pivot) for tablet in table.tablets] if table.dynamic and table.schema.keys else NOTHING
    ),
    "auto_trim_config": lambda context, table: table.options.get("auto_trim_config", NOTHING),
}
_EXPENSIVE = {"tablets", "pivot_keys", *queue_agent.ATTRIBUTES}
_NOT_ALWAYS = {"auto_trim_config", "sorted_by"}
TableNode.virtual = tuple(sorted({*_OF_TABLES, *queue_agent.ATTRIBUTES} - _NOT_ALWAYS))
TableNode.cheap = tuple(sorted({*_OF_TABLES, *_FIXED} - _EXPENSIVE))
TABLE = register(TableNode())
