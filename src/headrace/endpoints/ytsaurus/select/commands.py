"""The commands of the query language, which is loaded with the first query: its parser takes a while."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.endpoints.ytsaurus.commands import Answer, Context, Parameters, command
from headrace.endpoints.ytsaurus.tables.nodes import find_table
from headrace.endpoints.ytsaurus.tables.row_sources import source_of
from headrace.endpoints.ytsaurus.tables.state import Table
from headrace.endpoints.ytsaurus.tables.tablet_transactions import check_timestamp, reading
from headrace.wire.ytsaurus.paths import parse_path

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.select.grammar import Query

MAX_ROWS = 10_000_000
TIMEOUT_MS = 60_000
"""A query may take so long, unless a client says otherwise."""
LONGEST_MS = 86_400_000


def _query(context: Context, parameters: Parameters) -> tuple[Query, Table]:
    from headrace.endpoints.ytsaurus.select.grammar import parse_query

    query = parse_query(parameters.text("query"), parameters.mapping("placeholder_values", {}))
    table = find_table(context, parse_path(query.path))
    table.require_dynamic()
    return query, table


@command("select_rows", output="tabular", heavy=True)
def select_rows(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Run a query."""
    from headrace.endpoints.ytsaurus.select.execution import Limits, run

    query, table = _query(context, parameters)
    table.require_mounted(reading=True)
    check_timestamp(parameters)
    default = Limits()
    limits = Limits(
        input_rows=parameters.number("input_row_limit", default.input_rows, least=0, most=MAX_ROWS),
        output_rows=parameters.number("output_row_limit", default.output_rows, least=0, most=MAX_ROWS),
        fail=parameters.flag("fail_on_incomplete_result", True),
        canonical_null=parameters.flag("use_canonical_null_relations"),
        deadline=time.monotonic() + parameters.number("timeout", TIMEOUT_MS, least=0, most=LONGEST_MS) / 1000,
    )
    with reading(context, parameters) as database:
        batches, columns = run(query, source_of(database, table, context.cluster.name), limits)
    return Answer.rows(batches, columns)


@command("explain_query", heavy=True)
def explain_query(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return what a query would read."""
    from headrace.endpoints.ytsaurus.select.execution import pushed_down
    from headrace.endpoints.ytsaurus.select.types import shown

    query, table = _query(context, parameters)
    return Answer.structured(
        {
            "table": table.name,
            "where": None if query.where is None else shown(query.where),
            "conditions": [f"{each.column} {each.operator} {each.value!r}" for each in pushed_down(query)],
        }
    )
