"""The command that concatenates files or static tables. The result shares the parts of the sources."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from headrace_ytsaurus.endpoint.contents.file_commands import forget_digest
from headrace_ytsaurus.endpoint.contents.static_table_commands import check_following, static_table
from headrace_ytsaurus.endpoint.contents.uploads import appends, upload_of
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.basic_types import FILE
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.endpoint.cypress.node_commands import chain_of
from headrace_ytsaurus.endpoint.cypress.node_types import node_type
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.tables.nodes import TABLE, set_schema
from headrace_ytsaurus.endpoint.tables.state import Schema, Table
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE, SHARED
from headrace_ytsaurus.wire.paths import YPath, parse_path


def concatenate(context: Context, parameters: Parameters, body: bytes) -> None:
    """Replace the content of a file or static table by the contents of others, or append them."""
    chain = chain_of(context.transactions, parameters)
    destination: YPath = parameters.path("destination_path")
    node = context.cypress.need(chain, destination.node)
    paths = [parse_path(source) for source in parameters.sequence("source_paths")]
    sources = [context.cypress.need(chain, path.node) for path in paths]
    for path, each in zip(paths, sources, strict=True):
        if node_type(each) is not node_type(node):
            raise refused(
                f'{node.path} is of type "{node.type}", and {each.path} of type "{each.type}"', valid="one type"
            )
        if path.attributes.get("ranges") is not None or path.attributes.get("columns") is not None:
            raise refused("Rows and columns cannot be selected in source_paths", received=path.text)
    if node_type(node) is FILE:
        append = appends(destination)
        context.cypress.locks.need(chain, node.id, node.path, SHARED if append else EXCLUSIVE)
    elif node_type(node) is TABLE:
        append = _prepared(context, node, destination, sources)
    else:
        raise refused(f'{node.path} is of type "{node.type}"', valid="a file or a static table")
    ends = [(each.chain, each.id) for each in sources]
    context.cluster.contents.concatenate(chain, node.id, ends, append=append)
    forget_digest(context.cypress, node)
    context.cypress.touch(context.now, node)


def _prepared(context: Context, node: Node, destination: YPath, sources: Sequence[Node]) -> bool:
    """Lock a table for the rows of others, after checking them; return whether the rows are appended."""
    with context.database.read() as connection:
        table, *tables = (static_table(connection, each) for each in (node, *sources))
    upload = upload_of(destination, table.schema)
    schema = upload.schema
    if schema.columns:
        for each in tables:
            _check_columns(each, schema, node.path)
    elif not upload.append and tables and all(each.schema == tables[0].schema for each in tables):
        # A table without a schema gets the common schema of all sources, without its sort order.
        columns = tuple(dataclasses.replace(column, sort_order=None) for column in tables[0].schema.columns)
        schema = dataclasses.replace(tables[0].schema, columns=columns, unique_keys=False, sorted_by=())
    context.cypress.locks.need(node.chain, node.id, node.path, upload.lock)
    if schema.key_names:
        check_following(context, schema, [*([table] if upload.append else []), *tables])
    if schema != table.schema:
        set_schema(context.cypress, dataclasses.replace(table, schema=schema))
    return upload.append


def _check_columns(source: Table, schema: Schema, path: str) -> None:
    """Raise an error unless the rows of a table fit a schema."""
    known = {column.name: column for column in schema.columns}
    if not source.schema.columns:
        raise refused(f"Incompatible strictness: {source.name} has no schema, and {path} has one")
    for column in source.schema.columns:
        other = known.get(column.name)
        if other is None:
            raise refused(f"Column {column.name!r} of {source.name} is missing in {path}", valid=", ".join(known))
        if other.yt != column.yt or (other.required and not column.required):
            raise refused(f"Column {column.name!r} of {source.name} has another type than in {path}")
    names = source.schema.key_names[: len(schema.key_names)]
    if names != schema.key_names:
        raise refused(
            f"{source.name} is not sorted as {path} is", received=", ".join(names), valid=", ".join(schema.key_names)
        )
    if schema.unique_keys and not (source.schema.unique_keys and len(source.schema.key_names) == len(names)):
        raise refused(f"Keys of {source.name} may not be unique, and those of {path} are")
