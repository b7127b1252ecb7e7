"""Automatic trimming of queues of the endpoint, with YTsaurus' client."""

from __future__ import annotations

import pytest
from yt.wrapper import YtClient, YtResponseError

from tests.ytsaurus.interop.ytsaurus_tables import consumer, fill, queue


def rows_kept(client: YtClient, path: str, partition: int) -> int:
    return int(client.get(f"{path}/@queue_partitions")[partition]["available_row_count"])


def test_a_queue_keeps_unread_rows_of_vital_consumers(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=2, auto_trim_config={"enable": True})
    first, third = (consumer(client, f"{home}/c{number}", path, vital=True) for number in (1, 3))
    second = consumer(client, f"{home}/c2", path)
    client.insert_rows(path, [{"data": "x", "$tablet_index": 0}] * 5 + [{"data": "y", "$tablet_index": 1}] * 7)

    def advance(reader: str, partition: int, offset: int) -> None:
        client.advance_queue_consumer(reader, path, partition, None, offset)

    advance(first, 0, 3)
    advance(second, 0, 5)
    for reader, offset in ((first, 3), (second, 1), (third, 2)):
        advance(reader, 1, offset)
    assert (rows_kept(client, path, 0), rows_kept(client, path, 1)) == (5, 5)
    advance(third, 0, 2)
    assert rows_kept(client, path, 0) == 3
    advance(third, 0, 4)
    assert rows_kept(client, path, 0) == 2
    advance(first, 1, 6)
    advance(third, 1, 6)
    assert rows_kept(client, path, 1) == 1


def test_a_queue_keeps_the_configured_number_of_rows(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=2, auto_trim_config={"enable": True, "retained_rows": 3})
    reader = consumer(client, f"{home}/c", path, vital=True)
    fill(client, path, 5, tablet=0)
    client.advance_queue_consumer(reader, path, 0, None, 3)
    assert rows_kept(client, path, 0) == 3
    fill(client, path, 5, tablet=0)
    assert client.get(f"{path}/@queue_partitions/0/lower_row_index") == 3
    assert rows_kept(client, path, 0) == 7
    fill(client, path, 7, tablet=1)
    client.advance_queue_consumer(reader, path, 1, None, 6)
    assert rows_kept(client, path, 1) == 3
    assert client.get(f"{path}/@queue_partitions/1/lower_row_index") == 4
    client.remove(f"{path}/@auto_trim_config/retained_rows")
    assert rows_kept(client, path, 1) == 1
    assert client.get(f"{path}/@queue_partitions/1/lower_row_index") == 6
    assert client.get(f"{path}/@auto_trim_config") == {"enable": True}


def test_a_queue_keeps_rows_for_the_configured_time(client: YtClient, home: str) -> None:
    hours = {"enable": True, "retained_lifetime_duration": 5 * 3600 * 1000}
    path = queue(client, f"{home}/q", auto_trim_config=hours)
    reader = consumer(client, f"{home}/c", path, vital=True)
    fill(client, path, 5)
    client.advance_queue_consumer(reader, path, 0, None, 5)
    assert rows_kept(client, path, 0) == 5
    with pytest.raises(YtResponseError, match="whole number of seconds"):
        client.set(f"{path}/@auto_trim_config", {"enable": True, "retained_lifetime_duration": 1500})
    client.set(f"{path}/@auto_trim_config", {"enable": True})
    assert rows_kept(client, path, 0) == 0


def test_a_queue_without_vital_consumers_is_not_trimmed(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", auto_trim_config={"enable": True})
    reader = consumer(client, f"{home}/c", path)
    fill(client, path, 5)
    client.advance_queue_consumer(reader, path, 0, None, 5)
    fill(client, path, 1)
    assert rows_kept(client, path, 0) == 6
    client.remove(f"{path}/@auto_trim_config")
    assert not client.exists(f"{path}/@auto_trim_config")


def test_nothing_is_trimmed_while_offsets_of_a_vital_consumer_are_unknown(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", auto_trim_config={"enable": True})
    first, second = (consumer(client, f"{home}/c{number}", path, vital=True) for number in (1, 2))
    fill(client, path, 10)
    for reader in (first, second):
        client.advance_queue_consumer(reader, path, 0, None, 4)
    assert rows_kept(client, path, 0) == 6
    client.unmount_table(second, sync=True)
    client.advance_queue_consumer(first, path, 0, None, 5)
    client.mount_table(second, sync=True)
    client.advance_queue_consumer(second, path, 0, None, 5)
    assert rows_kept(client, path, 0) == 5
    client.remove(second)
    client.advance_queue_consumer(first, path, 0, None, 9)
    assert rows_kept(client, path, 0) == 5
    consumer(client, second)
    assert rows_kept(client, path, 0) == 5
    client.advance_queue_consumer(second, path, 0, None, 7)
    assert rows_kept(client, path, 0) == 3
    client.move(second, f"{second}-moved")
    assert rows_kept(client, path, 0) == 3
    client.unregister_queue_consumer(path, second)
    assert rows_kept(client, path, 0) == 1
    client.register_queue_consumer(path, "other://tmp/c", vital=True)
    client.advance_queue_consumer(first, path, 0, None, 10)
    assert rows_kept(client, path, 0) == 1
    client.register_queue_consumer(path, "other://tmp/c", vital=False)
    assert rows_kept(client, path, 0) == 0


def test_unmounted_tablets_are_not_trimmed(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=2, auto_trim_config={"enable": True})
    reader = consumer(client, f"{home}/c", path, vital=True)
    for tablet in (0, 1):
        fill(client, path, 5, tablet=tablet)
    client.unmount_table(path, first_tablet_index=0, last_tablet_index=0, sync=True)
    for tablet in (0, 1):
        client.advance_queue_consumer(reader, path, tablet, None, 2)
    assert [tablet["trimmed_row_count"] for tablet in client.get(f"{path}/@tablets")] == [0, 2]
    client.mount_table(path, first_tablet_index=0, last_tablet_index=0, sync=True)
    assert [rows_kept(client, path, tablet) for tablet in (0, 1)] == [3, 3]


def test_a_copied_queue_is_trimmed_automatically(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", auto_trim_config={"enable": True})
    fill(client, path, 3)
    client.freeze_table(path, sync=True)
    client.copy(path, f"{home}/copy")
    client.mount_table(f"{home}/copy", sync=True)
    reader = consumer(client, f"{home}/c", f"{home}/copy", vital=True)
    client.advance_queue_consumer(reader, f"{home}/copy", 0, None, 2)
    assert (rows_kept(client, path, 0), rows_kept(client, f"{home}/copy", 0)) == (3, 1)
