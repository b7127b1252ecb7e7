"""The node type of tables: creation, removal and copies of their resources, and their attributes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from headrace.stores.embedded.for_servers import Database, EmbeddedQueue, EmbeddedTable, stored_queues
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.attributes import attribute as attribute_of
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_types import NOTHING, NodeType, register
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.ids import ObjectType, derived_id
from headrace_ytsaurus.endpoint.parameters import flag_of, number_of
from headrace_ytsaurus.endpoint.queues import agent as queue_agent
from headrace_ytsaurus.endpoint.queues.trimming import update_trimming
from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.tree import Facet
from headrace_ytsaurus.endpoint.tables import objects as table_objects
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.state import MOUNTED, UNMOUNTED, Schema, Table, TableKind, new_tablets
from headrace_ytsaurus.endpoint.tables.tablets import STARTS, cell_of, pivots_of, starts_of, tablet_value
from headrace_ytsaurus.endpoint.values import with_attributes
from headrace_ytsaurus.wire.types import columns_of, schema_of
from headrace_ytsaurus.wire.yson import rows_decoding

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


@dataclasses.dataclass(frozen=True)
class _Role:
    """A special use of a sorted table.

    Attributes:
        alias: the type name for ``create``; alternatively, the client sets ``attribute``.
        optional: columns of the schema that may be missing.
    """

    alias: str
    attribute: str
    kind: TableKind
    schema: Schema
    optional: tuple[str, ...]

    def wrong(self, schema: Schema) -> list[str]:
        """Return the names of unknown, missing and different columns of a schema."""
        given = {column.name: (column.yt, column.sort_order) for column in schema.columns}
        needed = {column.name: (column.yt, column.sort_order) for column in self.schema.columns}
        unknown = list(given.keys() - needed.keys())
        return unknown + [name for name in needed if name not in self.optional and given.get(name) != needed[name]]

    def check(self, schema: Schema) -> None:
        """Raise an error unless a schema has the right columns."""
        wrong = self.wrong(schema)
        if wrong:
            valid = ", ".join(column.name for column in self.schema.columns)
            what = self.alias.replace("_", " ")
            raise refused(f"This is not the schema of a {what}", received=f"column {min(wrong)!r}", valid=valid)


_ROLES = (
    _Role(CONSUMER_ALIAS, "treat_as_queue_consumer", TableKind.CONSUMER, CONSUMER_SCHEMA, ("meta",)),
    _Role(PRODUCER_ALIAS, "treat_as_queue_producer", TableKind.PRODUCER, PRODUCER_SCHEMA, ("user_meta", "system_meta")),
)
REGISTRATIONS_PATH = "//sys/queue_agents/consumer_registrations"
_MAX_TABLETS = 10_000
_READ = (TableKind.QUEUE, TableKind.CONSUMER)
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
    "queue_agent_stage": "production",
    "tablet_balancer_config": {"enable_auto_reshard": True, "enable_auto_tablet_move": True},
}
# Other system attributes that users can set. Most of them have no effect.
_SETTABLE = (
    *(f"{which}_data_{what}" for which in ("min", "max") for what in ("ttl", "versions")),
    "desired_tablet_count",
    "desired_tablet_size",
    "enable_dynamic_store_read",
    "merge_rows_on_flush",
    "mount_config",
    "profiling_mode",
    "profiling_tag",
    "queue_agent_banned",
    "treat_as_queue_consumer",
    "treat_as_queue_producer",
)


class TableNode(NodeType):
    """All kinds of tables."""

    name = table_state.TABLE_TYPE
    object_type = ObjectType.TABLE
    aliases = (CONSUMER_ALIAS, PRODUCER_ALIAS)

    def create(self, context: Context, node: Node, attributes: Mapping[str, Any], alias: str) -> Mapping[str, Any]:
        kept = dict(attributes)
        rows, weights = (kept.pop(name, None) for name in STARTS)
        table = self._new(node, kept, alias)
        begins = starts_of(rows, weights, len(table.tablets), len(table.tablets))
        if table.kind is TableKind.STATIC:
            set_schema(context.cypress, table)
            context.cluster.contents.replace(node.chain, node.id, ())
            _refuse_export(kept)
            return kept
        with context.database.write() as connection:
            table_state.save(connection, table)
            table_objects.create(connection, table, context.cluster.name)
            table_objects.begin(connection, table, begins)
            if table.kind in _READ:
                update_trimming(context, table.name)
            _refuse_export(kept)
            config = kept.pop("auto_trim_config", None)
            if config is not None:
                _set_auto_trim(context.database, table, config)
        return kept

    def _new(self, node: Node, kept: dict[str, Any], alias: str) -> Table:
        """Return a new table; remove the attributes that the type handles from ``kept``."""
        given = kept.pop("schema", None)
        dynamic = flag_of(kept.pop("dynamic", False), 'attribute "dynamic"')
        count, pivots = kept.pop("tablet_count", None), kept.pop("pivot_keys", None)
        for role in _ROLES:
            if alias == role.alias or (dynamic and _has_role(role, kept.get(role.attribute, False))):
                schema = role.schema if given is None else Schema.parse(given).with_unique_keys
                role.check(schema)
                kept[role.attribute] = True
                # A table created by its alias is mounted immediately.
                return Table(node, role.kind, schema, new_tablets(1, MOUNTED if alias == role.alias else UNMOUNTED))
        if not dynamic:
            schema = Schema((), strict=False) if given is None else Schema.parse(given)
            return Table(node, TableKind.STATIC, schema.of_bytes, ())
        if given is None or not (schema := Schema.parse(given)).columns:
            raise refused(f'"schema" is mandatory for dynamic tables, and {node.path} has none')
        for role in _ROLES:
            # A table with these columns can be used as a consumer or producer even without the attribute.
            if not role.wrong(schema):
                return Table(node, role.kind, schema.with_unique_keys, new_tablets(1))
        if not schema.strict:
            raise refused("The schema of a dynamic table must be strict")
        schema = schema.with_unique_keys.of_bytes
        kind = TableKind.SORTED if schema.keys else TableKind.QUEUE
        if kind is TableKind.SORTED and len(schema.keys) == len(schema.columns):
            raise refused("There must be at least one non-key column in a sorted dynamic table")
        if pivots is not None:
            given_pivots = pivots_of(pivots, schema)
            return Table(node, kind, schema, new_tablets(len(given_pivots), pivots=given_pivots))
        number = 1 if count is None else number_of(count, 'attribute "tablet_count"', least=1, most=_MAX_TABLETS)
        if kind is TableKind.SORTED and number > 1:
            raise refused("A sorted table gets its tablets by pivot_keys", received=f"tablet_count={number}")
        return Table(node, kind, schema, new_tablets(number))

    def remove(self, context: Context, node: Node) -> None:
        with context.database.write() as connection:
            table = table_state.load(connection, node)
            if table.kind is TableKind.REGISTRATIONS:
                raise refused(f"{node.path} cannot be removed")
            table_objects.drop(connection, table, context.cluster.name)
            table_state.forget(connection, node)
            if table.kind in _READ:
                update_trimming(context, table.name)

    def move(self, context: Context, node: Node, source: str) -> None:
        with context.database.write() as connection:
            table = table_state.load(connection, node)
            if table.dynamic:
                refuse_in_transaction(node, "moved")
            table_objects.rename(connection, table, source, context.cluster.name)
            if table.kind in _READ:
                update_trimming(context, source, node.path)

    def copy(self, context: Context, node: Node, source: Node) -> None:
        with context.database.write() as connection:
            table = table_state.load(connection, source)
            made = dataclasses.replace(table, node=node)
            if table.kind is TableKind.STATIC:
                return
            if any(tablet.state == MOUNTED for tablet in table.tablets):
                raise refused(f"Cannot copy {source.path}: it is mounted", remedy="unmount or freeze it")
            pivots = [tablet.pivot for tablet in table.tablets]
            made = dataclasses.replace(made, tablets=new_tablets(len(pivots), pivots=pivots))
            table_objects.create(connection, made, context.cluster.name)
            table_objects.copy(connection, table, made, context.database)
            table_state.save(connection, made)
            if "auto_trim_config" in made.options:
                update_trimming(context, made.name)
                table_objects.set_auto_trim(connection, made, made.options["auto_trim_config"])

    # -- attributes -------------------------------------------------------------------------------------

    def attribute(self, context: Context, node: Node, name: str) -> Any:
        with context.database.read() as connection:
            table = table_state.load(connection, node)
            if name in _OF_TABLES:
                return _OF_TABLES[name](context, table)
            if name in queue_agent.ATTRIBUTES:
                banned = attribute_of(context, node, "queue_agent_banned")
                banned = banned is not NOTHING and flag_of(banned, 'attribute "queue_agent_banned"')
                return queue_agent.attribute(context, table, name, banned=banned)
        return _FIXED.get(name, NOTHING)

    def set_attribute(self, context: Context, node: Node, name: str, value: Any) -> bool:
        _refuse_export({name: value})
        with context.database.write() as connection:
            table = table_state.load(connection, node)
            if name == "auto_trim_config":
                refuse_in_transaction(node, "given an auto_trim_config")
                _set_auto_trim(context.database, table, value)
                return True
            for role in _ROLES:
                if name == role.attribute and _has_role(role, value) and table.kind is not role.kind:
                    role.check(table.schema)
        return False

    def remove_attribute(self, context: Context, node: Node, name: str) -> bool:
        if name != "auto_trim_config":
            return False
        refuse_in_transaction(node, "made to lose its auto_trim_config")
        with context.database.write() as connection:
            _set_auto_trim(context.database, table_state.load(connection, node), None)
        return True


def check_role(table: Table) -> None:
    """Raise an error if a queue consumer or producer does not have the right columns."""
    for role in _ROLES:
        if role.kind is table.kind:
            role.check(table.schema)


def set_schema(cypress: Cypress, table: Table) -> None:
    """Save the schema of a static table for the transaction that has locked it."""
    node = table.node
    cypress.tree.put(node.chain[0], node.id, Facet.CONTENT, "", table.schema.to_json().encode())


def refuse_in_transaction(node: Node, what: str) -> None:
    """Raise an error for a change of a dynamic table in a master transaction: it could not be undone."""
    if node.transaction is not None:
        raise refused(
            f"A dynamic table cannot be {what} in a master transaction",
            received=f"{node.path} in transaction {node.transaction}",
            remedy="do it outside of transactions",
        )


def make_dynamic(context: Context, table: Table) -> None:
    """Make a static table an unmounted dynamic one with the same rows."""
    refuse_in_transaction(table.node, "made")
    schema = table.schema.with_unique_keys
    if not schema.columns or not schema.strict:
        raise refused(f"{table.name} needs a strict schema to become dynamic")
    database = context.database
    node, tree = table.node, context.cypress.tree
    with database.write() as connection:
        context.cypress.locks.check(node.chain, node.id, node.path)
        made = Table(node, TableKind.SORTED if schema.keys else TableKind.QUEUE, schema, new_tablets(1))
        table_objects.create(connection, made, context.cluster.name)
        table_state.save(connection, made)
        for part in context.cluster.contents.parts(node.chain, node.id):
            rows = rows_decoding.decode_rows(static_tables.piece(connection, part), schema.columns)
            if made.kind is TableKind.QUEUE:
                EmbeddedQueue(database, made.name).append(rows)
            else:
                EmbeddedTable(database, made.name).put(schema.layout.to_stored(rows))
        for facet in (Facet.CONTENT, Facet.PARTS):
            tree.put(node.chain[0], node.id, facet, "", None)
        context.cypress.touch(context.now, node)


def _has_role(role: _Role, value: Any) -> bool:
    return flag_of(value, f'attribute "{role.attribute}"')


def _set_auto_trim(database: Database, table: Table, config: Any) -> None:
    with database.write() as connection:
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
            remedy="read the queue with a consumer, and write the rows with write_table",
        )


def _row_count(context: Context, table: Table) -> int:
    with context.database.read() as connection:
        if table.kind is TableKind.STATIC:
            return context.cluster.contents.totals(table.node.chain, table.node.id)[1]
        if table.kind is TableKind.QUEUE:
            state = stored_queues.load(connection, table.name)
            return sum(each.bounds.rows for each in stored_queues.partitions(connection, state))
        if table.kind is TableKind.SORTED:
            rows = connection.execute(
                "SELECT ifnull(sum(p.rows), 0) FROM partition p JOIN object o ON o.id = p.object"
                " WHERE o.name = ? AND p.open",
                (table.name,),
            )
            return int(next(rows)[0])
    return 0


def _size(context: Context, table: Table) -> int:
    with context.database.read() as connection:
        if table.kind is TableKind.QUEUE:
            state = stored_queues.load(connection, table.name)
            return sum(each.bounds.bytes for each in stored_queues.partitions(connection, state))
        if table.kind is TableKind.STATIC:
            return context.cluster.contents.totals(table.node.chain, table.node.id)[2]
    return 0


def _chunk_count(context: Context, table: Table) -> int:
    if table.kind is TableKind.STATIC:
        return context.cluster.contents.totals(table.node.chain, table.node.id)[0]
    return 1


def _chunk_ids(context: Context, table: Table) -> Any:
    if table.kind is not TableKind.STATIC:
        return NOTHING
    return [part.chunk_id for part in context.cluster.contents.parts(table.node.chain, table.node.id)]


def _schema_value(context: Context, table: Table) -> Any:
    attributes = {"strict": table.schema.strict, "unique_keys": table.schema.unique_keys}
    by = [{"name": name, "type": "any", "sort_order": "ascending"} for name in table.schema.sorted_by]
    return with_attributes(schema_of((*columns_of(by), *table.schema.columns)), attributes)


def _tablets(context: Context, table: Table) -> Any:
    if not table.dynamic:
        return NOTHING
    with context.database.read() as connection:
        bounds = None
        if table.kind is TableKind.QUEUE:
            bounds = [
                each.bounds for each in stored_queues.partitions(connection, stored_queues.load(connection, table.name))
            ]
    cell = cell_of(context.cypress)
    return [
        tablet_value(table, number, None if bounds is None else bounds[number], cell)
        for number in range(len(table.tablets))
    ]


_OF_TABLES: Mapping[str, Callable[[Context, Table], Any]] = {
    "schema": _schema_value,
    "schema_id": lambda context, table: derived_id(ObjectType.TABLE_SCHEMA, table.schema.to_json()),
    "schema_mode": lambda context, table: "strong" if table.schema.columns else "weak",
    "dynamic": lambda context, table: table.dynamic,
    "sorted": lambda context, table: bool(table.schema.key_names),
    "key_columns": lambda context, table: list(table.schema.key_names),
    "sorted_by": lambda context, table: list(table.schema.key_names) or NOTHING,
    # A cluster does not count the rows of dynamic tables, only the rows of their chunks.
    "row_count": lambda context, table: NOTHING if table.dynamic else _row_count(context, table),
    "chunk_row_count": _row_count,
    "chunk_count": _chunk_count,
    "chunk_ids": _chunk_ids,
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
_EXPENSIVE = {"chunk_ids", "tablets", "pivot_keys", *queue_agent.ATTRIBUTES}
TableNode.virtual = tuple(sorted({*_OF_TABLES, *queue_agent.ATTRIBUTES}))
TableNode.cheap = tuple(sorted({*_OF_TABLES, *_FIXED} - _EXPENSIVE))
TableNode.settable = (*_FIXED, *_SETTABLE)
TABLE = register(TableNode())
