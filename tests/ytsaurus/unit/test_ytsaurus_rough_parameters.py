"""With random parameters, commands on tables and queues answer or fail with a YTsaurus error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yt import yson

from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.errors import yt_error
from headrace_ytsaurus.endpoint.formats import JSON, YSON
from headrace_ytsaurus.endpoint.parameters import Parameters


def words(text: str) -> list[str]:
    return text.split()


PATHS = [*words("//tmp/t //tmp/q //tmp/c //tmp/p //tmp/s //tmp //tmp/none //sys/queue_agents #1-2-3-4"), ""]
QUERIES = [
    "k from [//tmp/t] where k = 1",
    "* from [//tmp/q]",
    "* from [//tmp/c]",
    "* from [//tmp]",
    "k from [//tmp/t] {x}",
]
NAMES = {
    "path": PATHS,
    "queue_path": [*PATHS, "elsewhere://tmp/q", "<ranges=5>//tmp/q"],
    "consumer_path": [*PATHS, "<queue_consumer_name=a>//tmp/c"],
    "producer_path": PATHS,
    "query": QUERIES,
    "type": words("table queue_consumer queue_producer"),
}
NUMBERS: list[Any] = [0, 1, -1, 2**63, 2**64 - 1, 2**70, 1.5, yson.YsonUint64(5)]
LISTS: list[Any] = [[], [[]], [None], ["x"], [-1], [[5], [7]], [{"lower_limit": 1}]]
MAPS: list[Any] = [{}, {"a": 1}, {"enable": "x", "retained_rows": "y"}]
ODD: list[Any] = [*NUMBERS, *LISTS, *MAPS, "", "x", b"\xff", None, True, "1-2-3-4", "1-2-10002-4"]
OTHERS = words(
    """partition_index offset max_row_count max_data_weight old_offset new_offset client_side vital partitions epoch
    session_id sequence_number user_meta tablet_index trimmed_row_count tablet_indexes tablet_count pivot_keys schema
    dynamic first_tablet_index last_tablet_index attributes freeze trimmed_row_counts cumulative_data_weights
    column_names timestamp keep_missing_rows lock_type update aggregate transaction_id placeholder_values
    input_row_limit output_row_limit"""
)
TRIED = words(
    """insert_rows delete_rows lock_rows lookup_rows select_rows explain_query trim_rows mount_table unmount_table
    freeze_table unfreeze_table remount_table reshard_table alter_table get_table_pivot_keys get_tablet_infos
    get_tablet_errors register_queue_consumer unregister_queue_consumer list_queue_consumer_registrations pull_queue
    pull_queue_consumer advance_queue_consumer create_queue_producer_session remove_queue_producer_session
    push_queue_producer write_table read_table"""
)
BODIES = [
    *(b"", b"{}", b"{", b"[1]", b"null\n", b"\xff\x00", b"{k=1};", b'{"k":null}', b'{"k":1,"v":"x"}\n'),
    b'{"data":"x","$$sequence_number":3}',
    b'{"queue_cluster":"primary","queue_path":"//tmp/q","partition_index":0,"offset":3}',
]
OF_TABLES = words("dynamic schema tablet_count pivot_keys auto_trim_config treat_as_queue_consumer")
SCHEMAS: list[Any] = [[{"name": "a", "type": "int64"}], [{"name": "a", "type": "any", "sort_order": "ascending"}]]


def create_objects(cluster: Cluster) -> None:
    """Create what the paths name: a table, a queue, a consumer, a producer, and a static table."""
    keyed = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "string"}]
    plain = [{"name": "data", "type": "string"}, {"name": "$cumulative_data_weight", "type": "int64"}]
    for path, kind, attributes in (
        ("//tmp/t", "table", {"dynamic": True, "schema": keyed}),
        ("//tmp/q", "table", {"dynamic": True, "schema": plain, "tablet_count": 2}),
        ("//tmp/c", "queue_consumer", {}),
        ("//tmp/p", "queue_producer", {}),
        ("//tmp/s", "table", {}),
    ):
        parameters = Parameters({"path": path, "type": kind, "attributes": attributes}, "create")
        execute(cluster.context(), COMMANDS["create"], parameters, b"")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(Path(tmp_path_factory.mktemp("cluster")))
    create_objects(cluster)
    yield cluster
    cluster.close()


@settings(max_examples=thorough(400), deadline=None)
@given(
    st.sampled_from(TRIED),
    st.fixed_dictionaries({}, optional={name: st.sampled_from([*values, *ODD]) for name, values in NAMES.items()}),
    st.dictionaries(st.sampled_from(OTHERS), st.sampled_from(ODD), max_size=6),
    st.sampled_from(BODIES),
    st.sampled_from([JSON, YSON]),
)
def test_random_parameters_cause_no_internal_error(
    cluster: Cluster, name: str, paths: dict[str, Any], others: dict[str, Any], body: bytes, form: Any
) -> None:
    context = cluster.context()
    context.input_format = context.output_format = form
    try:
        execute(context, COMMANDS[name], Parameters({**paths, **others}, name), body)
    except Exception as error:
        if yt_error(error) is None:
            raise


@settings(max_examples=thorough(100), deadline=None)
@given(
    st.sampled_from(NAMES["type"]),
    st.dictionaries(st.sampled_from(OF_TABLES), st.sampled_from([*ODD, *SCHEMAS])),
)
def test_random_table_attributes_cause_no_internal_error(
    cluster: Cluster, kind: str, attributes: dict[str, Any]
) -> None:
    for command, parameters in (
        ("create", {"path": "//tmp/new", "type": kind, "attributes": attributes}),
        ("get", {"path": "//tmp/new/@", "attributes": ["schema", "tablets", "queue_status", "queue_consumer_status"]}),
        ("remove", {"path": "//tmp/new", "force": True}),
    ):
        try:
            execute(cluster.context(), COMMANDS[command], Parameters(parameters, command), b"")
        except Exception as error:
            if yt_error(error) is None:
                raise
