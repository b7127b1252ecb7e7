"""Queue producers of the endpoint push every row exactly once, with YTsaurus' client."""

from __future__ import annotations

from typing import Any

import pytest
from yt.wrapper import YtClient, YtResponseError

import headrace
from tests.ytsaurus.interop.ytsaurus_server import YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE, losing_transaction


class Ends:
    """A queue of two tablets, and a producer for it."""

    def __init__(self, client: YtClient, home: str) -> None:
        self.queue, self.producer = f"{home}/q", f"{home}/p"
        schema = [{"name": "data", "type": "string"}]
        client.create("table", self.queue, attributes={"dynamic": True, "schema": schema, "tablet_count": 2})
        client.mount_table(self.queue, sync=True)
        client.create("queue_producer", self.producer)
        self._client = client

    def open(self, session: str = "s", **options: Any) -> dict[str, Any]:
        return dict(self._client.create_queue_producer_session(self.producer, self.queue, session, **options))

    def push(
        self, numbers: Any, epoch: int = 0, session: str = "s", client: YtClient | None = None, **options: Any
    ) -> tuple[int, int]:
        rows = [{"data": str(number), "$sequence_number": number, "$tablet_index": 0} for number in numbers]
        answer = (client or self._client).push_queue_producer(
            self.producer, self.queue, session, epoch, rows, **options
        )
        return answer["last_sequence_number"], answer["skipped_row_count"]

    def rows(self) -> list[str]:
        return [row["data"] for row in self._client.select_rows(f"data from [{self.queue}]")]


@pytest.fixture
def ends(client: YtClient, home: str) -> Ends:
    return Ends(client, home)


def test_a_created_producer_has_a_schema_and_is_mounted(client: YtClient, ends: Ends) -> None:
    assert client.get(f"{ends.producer}/@tablet_state") == "mounted"
    assert client.get(f"{ends.producer}/@treat_as_queue_producer")
    names = [(column["name"], column["type"]) for column in client.get(f"{ends.producer}/@schema")]
    assert names == [
        ("queue_cluster", "string"),
        ("queue_path", "string"),
        ("session_id", "string"),
        ("sequence_number", "int64"),
        ("epoch", "int64"),
        ("user_meta", "any"),
        ("system_meta", "any"),
    ]


def test_opening_a_session_increases_its_epoch(ends: Ends) -> None:
    assert ends.open() == {"epoch": 0, "sequence_number": -1, "user_meta": None}
    assert ends.push([3, 5]) == (5, 0)
    assert ends.open(user_meta={"who": ["a", 1]}) == {
        "epoch": 1,
        "sequence_number": 5,
        "user_meta": {"who": ["a", 1]},
    }
    assert ends.open() == {"epoch": 2, "sequence_number": 5, "user_meta": {"who": ["a", 1]}}


def test_a_repeated_opening_with_one_mutation_id_is_done_once(yt_server: YtServer, ends: Ends) -> None:
    parameters = {
        "producer_path": ends.producer,
        "queue_path": ends.queue,
        "session_id": "s",
        "mutation_id": "1-2-3-4",
        "output_format": "json",
    }
    answers = [
        yt_server.call("POST", "create_queue_producer_session", {**parameters, "retry": retry}).value
        for retry in (False, True)
    ]
    assert answers == [{"epoch": 0, "sequence_number": -1, "user_meta": None}] * 2


def test_rows_pushed_before_are_skipped_and_counted(ends: Ends) -> None:
    ends.open()
    assert ends.push([1, 2, 7]) == (7, 0)
    assert ends.push([2, 7, 8, 20]) == (20, 2)
    assert ends.push([1, 2]) == (20, 2)
    assert ends.push([21]) == (21, 0)
    assert ends.rows() == ["1", "2", "7", "8", "20", "21"]


def test_only_the_newest_epoch_can_push(ends: Ends) -> None:
    ends.open()
    ends.open()
    for epoch, code in ((0, 3102), (2, 3101)):
        with pytest.raises(YtResponseError) as error:
            ends.push([1], epoch)
        assert error.value.error["code"] == code
    assert ends.push([1], 1) == (1, 0)


@pytest.mark.parametrize("numbers", [[-1], [2, 2], [3, 1]])
def test_sequence_numbers_must_increase_from_zero(ends: Ends, numbers: list[int]) -> None:
    ends.open()
    with pytest.raises(YtResponseError) as error:
        ends.push(numbers)
    assert error.value.error["code"] == 3103
    assert ends.rows() == []


def test_every_row_needs_a_valid_sequence_number(client: YtClient, ends: Ends) -> None:
    ends.open()
    with pytest.raises(YtResponseError) as error:
        client.push_queue_producer(ends.producer, ends.queue, "s", 0, [{"data": "x"}])
    assert error.value.error["code"] == 3103
    with pytest.raises(YtResponseError, match="Error parsing sequence number from row"):
        client.push_queue_producer(ends.producer, ends.queue, "s", 0, [{"data": "x", "$sequence_number": "one"}])


def test_one_number_can_be_given_for_all_rows(yt_server: YtServer, ends: Ends) -> None:
    ends.open()
    parameters = {
        "producer_path": ends.producer,
        "queue_path": ends.queue,
        "session_id": "s",
        "epoch": 0,
        "sequence_number": 10,
        "input_format": "json",
        "output_format": "json",
    }
    rows = b'{"data":"a"}\n{"data":"b"}\n'
    answer = yt_server.call("PUT", "push_queue_producer", parameters, body=rows)
    assert answer.value == {"last_sequence_number": 11, "skipped_row_count": 0}
    again = yt_server.call("PUT", "push_queue_producer", parameters, body=rows + b'{"data":"c"}\n')
    assert again.value == {"last_sequence_number": 12, "skipped_row_count": 2}
    numbered = yt_server.call("PUT", "push_queue_producer", parameters, body=b'{"data":"d","$$sequence_number":20}\n')
    assert numbered.code == 3103
    assert ends.rows() == ["a", "b", "c"]


def test_rows_go_to_their_tablet_index(client: YtClient, ends: Ends) -> None:
    ends.open()
    rows = [{"data": str(number), "$sequence_number": number, "$tablet_index": 1} for number in range(3)]
    client.push_queue_producer(ends.producer, ends.queue, "s", 0, rows)
    assert len(list(client.pull_queue(ends.queue, offset=0, partition_index=1))) == 3


def test_a_removed_session_starts_again(client: YtClient, ends: Ends) -> None:
    ends.open()
    ends.open()
    ends.push([4], 1)
    client.remove_queue_producer_session(ends.producer, ends.queue, "s")
    with pytest.raises(YtResponseError, match="create_queue_producer_session"):
        ends.push([5])
    assert ends.open() == {"epoch": 0, "sequence_number": -1, "user_meta": None}


def test_sessions_are_rows_of_the_producer(client: YtClient, yt_server: YtServer, ends: Ends) -> None:
    ends.open(user_meta="mine")
    ends.push([4])
    (row,) = client.select_rows(f"* from [{ends.producer}]")
    assert row == {
        "queue_cluster": "primary",
        "queue_path": ends.queue,
        "session_id": "s",
        "sequence_number": 4,
        "epoch": 0,
        "user_meta": "mine",
        "system_meta": None,
    }
    with headrace.open(str(yt_server.root)) as store:
        (session,) = store.producer(ends.producer).sessions(ends.queue)
        assert (session.session, session.epoch, session.sequence_number) == ("s", 0, 4)


def test_an_update_of_a_session_keeps_other_columns(client: YtClient, ends: Ends) -> None:
    ends.open(user_meta={"mine": 1})
    key = {"queue_cluster": "primary", "queue_path": ends.queue, "session_id": "s"}
    client.insert_rows(ends.producer, [{**key, "epoch": 200}], update=True)
    assert ends.open() == {"epoch": 201, "sequence_number": -1, "user_meta": {"mine": 1}}
    for wrong, update in (({"session_id": "other", "epoch": 1}, True), ({"epoch": 1}, False)):
        with pytest.raises(YtResponseError, match="'sequence_number' cannot have a null value"):
            client.insert_rows(ends.producer, [{**key, **wrong}], update=update)


def test_pushes_in_a_transaction_are_visible_after_the_commit(client: YtClient, ends: Ends) -> None:
    ends.open("one")
    ends.open("two")
    with client.Transaction(type="tablet"):
        assert ends.push([1, 2], session="one") == (2, 0)
        assert ends.push([2, 3], session="one") == (3, 1)
        assert ends.push([9], session="two") == (9, 0)
        assert ends.rows() == []
    assert ends.rows() == ["1", "2", "3", "9"]
    assert ends.push([3, 4], session="one") == (4, 1)


def test_only_pushes_of_the_same_session_conflict(client: YtClient, yt_server: YtServer, ends: Ends) -> None:
    other = yt_server.client(**AT_ONCE)
    ends.open("one")
    ends.open("two")
    with client.Transaction(type="tablet"), other.Transaction(type="tablet"):
        ends.push([1], session="one")
        ends.push([2], session="two", client=other)
    assert sorted(ends.rows()) == ["1", "2"]
    with losing_transaction(client):
        ends.push([5], session="one")
        with other.Transaction(type="tablet"):
            ends.push([5], session="one", client=other)
    assert sorted(ends.rows()) == ["1", "2", "5"]
