"""Booleans, numbers, durations and times of clients, which can be texts, as on a cluster; others are refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from yt import yson

from headrace.errors import SchemaError
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.queues.trimming import trim_old_rows
from headrace_ytsaurus.wire.errors import YtError
from headrace_ytsaurus.wire.yson.scalars import as_flag, as_milliseconds, as_number
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of

SCHEMA = [{"name": "data", "type": "string"}]
KEYED = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "string"}]
CONSUMER = "treat_as_queue_consumer"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


TRUE: list[Any] = [True, 1, "true", "1", b"true", yson.YsonBoolean(True), yson.YsonUint64(1)]
FALSE: list[Any] = [False, 0, "false", "0", yson.YsonString(b"false"), yson.YsonBoolean(False)]
NEITHER: list[Any] = [2, -1, 1.0, "True", "yes", "", b"\xff", None, [], {}, yson.YsonEntity()]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        *((value, True) for value in TRUE),
        *((value, False) for value in FALSE),
        *((value, None) for value in NEITHER),
    ],
)
def test_a_boolean_can_be_a_text_or_a_number(value: Any, found: bool | None) -> None:
    assert as_flag(value) is found


def test_numbers_and_durations_can_be_texts() -> None:
    assert [as_number(value) for value in (5, "5", b"-5", yson.YsonUint64(5))] == [5, 5, -5, 5]
    assert [as_number(value) for value in (True, yson.YsonBoolean(True), 1.0, "5 ", "1e3", None)] == [None] * 6
    texts = {"5m": 300_000, "1.5s": 1500, "2h": 7_200_000, "1d": 86_400_000, "10ms": 10, "2000us": 2, "5": 5000}
    assert {text: as_milliseconds(text) for text in texts} == texts
    assert [as_milliseconds(value) for value in (1500, 1.5, yson.YsonUint64(2))] == [1500, 1, 2]
    assert [as_milliseconds(value) for value in (True, -1, -1.5, "-5s", "5 m", "", None)] == [None] * 7
    assert Parameters({"timeout": "5m"}).duration("timeout", 0) == 300_000
    with pytest.raises(YtError, match="timeout; received: 'soon'; valid: milliseconds, or a text such as 5m"):
        Parameters({"timeout": "soon"}).duration("timeout", 0)


@pytest.mark.parametrize(("text", "kind"), [("false", None), ("0", None), ("true", "mounted"), (1, "mounted")])
def test_dynamic_as_a_text_makes_the_right_kind_of_table(cluster: Cluster, text: Any, kind: str | None) -> None:
    path = f"//tmp/dynamic-{text}"
    call(cluster, "create", type="table", path=path, attributes={"dynamic": text, "schema": SCHEMA})
    assert value_of(cluster, f"{path}/@dynamic") is (kind is not None)


def test_flags_of_a_schema_can_be_texts(cluster: Cluster) -> None:
    column = {"name": "k", "type": "int64", "sort_order": "ascending"}
    for number, (required, text) in enumerate(((True, "true"), (False, "false"))):
        schema = yson.to_yson_type([{**column, "required": text}], attributes={"strict": text, "unique_keys": text})
        path = f"//tmp/schema-{number}"
        call(cluster, "create", type="table", path=path, attributes={"schema": schema})
        found = value_of(cluster, f"{path}/@schema")
        assert (found[0]["required"], dict(found.attributes)) == (
            required,
            {"strict": required, "unique_keys": required},
        )


@pytest.mark.parametrize(
    "attributes",
    [
        {"dynamic": "no", "schema": SCHEMA},
        {"dynamic": 2, "schema": SCHEMA},
        {"dynamic": True, "schema": SCHEMA, "tablet_count": "many"},
        {"dynamic": True, "schema": SCHEMA, "tablet_count": 0},
        {"dynamic": True, "schema": KEYED, CONSUMER: "perhaps"},
        {"schema": [{"name": "a", "type": "int64", "required": "no"}]},
        {"schema": yson.to_yson_type(SCHEMA, attributes={"strict": "no"})},
        {"dynamic": True, "schema": SCHEMA, "auto_trim_config": {"enable": "no"}},
        {"dynamic": True, "schema": SCHEMA, "auto_trim_config": {"enable": True, "retained_rows": "few"}},
        {"dynamic": True, "schema": SCHEMA, "auto_trim_config": {"retained_lifetime_duration": "1500ms"}},
    ],
)
def test_other_values_of_attributes_are_refused(cluster: Cluster, attributes: dict[str, Any]) -> None:
    with pytest.raises((YtError, SchemaError), match=r"dynamic|tablet_count|consumer|required|strict|enable|retained"):
        call(cluster, "create", type="table", path="//tmp/refused", attributes=attributes)
    assert not call(cluster, "exists", path="//tmp/refused").value["value"]


def test_a_table_is_a_consumer_only_if_its_flag_is_true(cluster: Cluster) -> None:
    attributes = {"dynamic": "true", "schema": KEYED, CONSUMER: "false"}
    call(cluster, "create", type="table", path="//tmp/plain", attributes=attributes)
    call(cluster, "set", "false", path=f"//tmp/plain/@{CONSUMER}")
    with pytest.raises(YtError, match="not the schema of a queue consumer"):
        call(cluster, "set", "true", path=f"//tmp/plain/@{CONSUMER}")


@pytest.mark.parametrize(("enable", "left"), [("false", 2), ("true", 1)])
def test_trimming_obeys_a_text(cluster: Cluster, enable: str, left: int) -> None:
    queue, consumer = f"//tmp/trimmed-{enable}", f"//tmp/consumer-{enable}"
    attributes = {"dynamic": True, "schema": SCHEMA, "auto_trim_config": {"enable": enable}}
    call(cluster, "create", type="table", path=queue, attributes=attributes)
    call(cluster, "mount_table", path=queue)
    call(cluster, "create", type="queue_consumer", path=consumer)
    call(cluster, "register_queue_consumer", queue_path=queue, consumer_path=consumer, vital="true")
    cluster.store.queue(queue).append([{"data": b"a"}, {"data": b"b"}])
    advance = {"queue_path": queue, "consumer_path": consumer, "partition_index": "0", "new_offset": "1"}
    call(cluster, "advance_queue_consumer", client_side="true", **advance)
    trim_old_rows(cluster.database)
    assert value_of(cluster, f"{queue}/@auto_trim_config/enable") == enable
    assert value_of(cluster, f"{queue}/@queue_partitions/0/available_row_count") == left


def test_a_banned_queue_says_so_for_true_only(cluster: Cluster) -> None:
    call(cluster, "create", type="table", path="//tmp/banned", attributes={"dynamic": True, "schema": SCHEMA})
    for text, banned in (("false", False), ("true", True)):
        call(cluster, "set", text, path="//tmp/banned/@queue_agent_banned")
        assert ("error" in value_of(cluster, "//tmp/banned/@queue_status")) is banned


def test_append_can_be_a_text(cluster: Cluster) -> None:
    call(cluster, "create", type="table", path="//tmp/appended")
    for flag, rows in (("true", 1), ("true", 2), ("false", 1)):
        call(cluster, "write_table", [{"a": 1}], path=f"<append={flag}>//tmp/appended")
        assert value_of(cluster, "//tmp/appended/@row_count") == rows
    with pytest.raises(YtError, match='attribute "append" of the path'):
        call(cluster, "write_table", [{"a": 1}], path="<append=perhaps>//tmp/appended")


def test_times_can_be_numbers_and_durations_texts(cluster: Cluster) -> None:
    moment = int(time.time() + 3600) * 1000
    ends = {"expiration_time": moment, "expiration_timeout": "1h"}
    call(cluster, "create", type="map_node", path="//tmp/expiring", attributes=ends)
    assert value_of(cluster, "//tmp/expiring/@expiration_timeout") == 3_600_000
    started = call(cluster, "start_transaction", timeout="10m", deadline=moment).value["transaction_id"]
    assert value_of(cluster, f"#{started}/@timeout") == 600_000
    call(cluster, "abort_transaction", transaction_id=started)
    with pytest.raises(YtError, match="parameter /deadline; received: 'later'"):
        call(cluster, "start_transaction", deadline="later")
