"""Helpers for tests of tables and queues: creating and filling them, and failing transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from yt.wrapper import YtClient
from yt.wrapper.errors import YtTabletTransactionLockConflict

# Configuration of clients without retries, for tests of temporary errors.
AT_ONCE: dict[str, Any] = {"dynamic_table_retries": {"enable": False}}
DATA = {"name": "data", "type": "string"}
TIMESTAMP = {"name": "$timestamp", "type": "uint64"}
WEIGHT = {"name": "$cumulative_data_weight", "type": "int64"}


@contextmanager
def losing_transaction(
    client: YtClient, error: type[Exception] = YtTabletTransactionLockConflict, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Run a tablet transaction that must fail, at the latest in its commit."""
    with pytest.raises(error, match=match) as found, client.Transaction(type="tablet"):
        yield found


def queue(client: YtClient, path: str, *columns: dict[str, str], tablets: int = 1, **attributes: Any) -> str:
    schema = [DATA, *columns]
    client.create("table", path, attributes={"dynamic": True, "schema": schema, "tablet_count": tablets, **attributes})
    client.mount_table(path, sync=True)
    return path


def consumer(client: YtClient, path: str, *queues: str, vital: bool = False) -> str:
    client.create("queue_consumer", path)
    for each in queues:
        client.register_queue_consumer(each, path, vital=vital)
    return path


def fill(client: YtClient, path: str, count: int, data: str = "foo", *, tablet: int | None = None) -> None:
    client.insert_rows(path, [{"data": data} | ({} if tablet is None else {"$tablet_index": tablet})] * count)


def pulled(client: YtClient, path: str, offset: int, partition: int = 0, **options: Any) -> list[dict[str, Any]]:
    return list(client.pull_queue(path, offset=offset, partition_index=partition, **options))
