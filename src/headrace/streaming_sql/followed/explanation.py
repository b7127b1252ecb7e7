"""The properties of a followed query in ``EXPLAIN STREAM``."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.following.jobs import state_name
from headrace.ports import Store
from headrace.streaming_sql.followed.follow import FollowedStream, keeps_previous
from headrace.streaming_sql.language.followed_items import AggregateCall

_HOW = {
    "count_rows": "a count in the row of the group",
    "count": "a count in the row of the group",
    "sum": "an exact sum and a count in the row of the group",
    "avg": "an exact sum and a count in the row of the group; their quotient is rounded once",
    "min": "each value with its count in the table of values; the least one also in the row of the group",
    "max": "each value with its count in the table of values; the greatest one also in the row of the group",
    "count_distinct": "each value with its count in the table of values; their number also in the row of the group",
}


def properties(stream: FollowedStream, store: Store) -> Iterator[tuple[str, str]]:
    """Yield the properties of a followed query.

    Args:
        store: the store of the target.
    """
    query, target = stream.plan.checked.query, stream.target.name
    for scan in stream.plan.scans:
        yield "followed", f"{scan.name}, by its key ({', '.join(scan.key)})"
    for name in query.others:
        yield "static table", f"{name}: read when the stream starts; its content must not change"
    key = ", ".join(stream.check(store))
    states = stream.plan.states(keeps_previous=keeps_previous(store))
    if states is None:
        yield "rows", f"the last row of a batch for each key ({key}) is put, or the key is deleted"
        yield "state tables", "none"
        return
    yield "groups", f"a row for each group in {target}, with the key ({key}); deleted with the last row of the group"
    for call in query.aggregates:
        yield "aggregate", f"{call.text}: {_kept(call)}"
    name = state_name(store, target, "")
    tables = states.tables(f"{name}_")
    where = f"in the store of {target}, published in one transaction with it"
    if keeps_previous(store):
        where = f"in the store of {target}; each row also keeps its state before the last batch, which can be repeated"
    yield "state tables", f"{', '.join(tables)}: named {name[:-12]}…, {where}"


def _kept(call: AggregateCall) -> str:
    return _HOW[call.kind]
