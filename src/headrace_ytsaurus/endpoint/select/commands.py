"""The commands of the query language."""

from __future__ import annotations

import time

from headrace_ytsaurus.endpoint.context import Answer, Context
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.select.execution import Limits, run
from headrace_ytsaurus.endpoint.select.grammar import parse_query
from headrace_ytsaurus.endpoint.select.nodes import Query
from headrace_ytsaurus.endpoint.select.pushdown import pushed_down
from headrace_ytsaurus.endpoint.tables.row_sources import check_timestamp, reading, source_of
from headrace_ytsaurus.endpoint.tables.state import Table, find_table
from headrace_ytsaurus.wire.paths import parse_path

MAX_ROWS = 10_000_000
TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 86_400_000


def _query(cypress: Cypress, parameters: Parameters) -> tuple[Query, Table]:
    query = parse_query(parameters.text("query"), parameters.mapping("placeholder_values", {}))
    table = find_table(cypress, parse_path(query.path))
    table.require_dynamic()
    return query, table


def select_rows(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Run a query."""
    query, table = _query(context.cypress, parameters)
    table.require_mounted(reading=True)
    check_timestamp(parameters)
    default = Limits()
    limits = Limits(
        input_rows=parameters.number("input_row_limit", default.input_rows, least=0, most=MAX_ROWS),
        output_rows=parameters.number("output_row_limit", default.output_rows, least=0, most=MAX_ROWS),
        fail=parameters.flag("fail_on_incomplete_result", True),
        canonical_null=parameters.flag("use_canonical_null_relations"),
        deadline=time.monotonic() + parameters.duration("timeout", TIMEOUT_MS, most=MAX_TIMEOUT_MS) / 1000,
    )
    with reading(context, parameters) as database:
        batches, columns = run(query, source_of(database, table, context.cluster.name), limits)
    return Answer.rows(batches, columns)


def explain_query(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Return the table of a query, its condition, and the conditions that its scan uses."""
    query, table = _query(context.cypress, parameters)
    return Answer.structured(
        {
            "table": table.name,
            "where": None if query.where is None else query.where.text,
            "conditions": [f"{each.column} {each.operator} {each.value!r}" for each in pushed_down(query)],
        }
    )
