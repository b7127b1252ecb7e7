"""What a store without queues answers when it is asked for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.ports import Consumer, Producer, Queue, Registration, Store


class StoreWithoutQueues(Store):
    """A store that refuses all that has to do with queues, consumers and producers."""

    def create_queue(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        **options: Any,
    ) -> Queue:
        _refuse("queue", name)

    def queue(self, name: str) -> Queue:
        _refuse("queue", name)

    def queues(self) -> list[str]:
        _refuse("queue")

    def drop_queue(self, name: str, *, missing_ok: bool = False) -> None:
        _refuse("queue", name)

    def create_consumer(self, name: str, *, exist_ok: bool = False) -> Consumer:
        _refuse("consumer", name)

    def consumer(self, name: str) -> Consumer:
        _refuse("consumer", name)

    def consumers(self) -> list[str]:
        _refuse("consumer")

    def drop_consumer(self, name: str, *, missing_ok: bool = False) -> None:
        _refuse("consumer", name)

    def register_consumer(self, queue: str, consumer: str, *, vital: bool = False) -> Registration:
        _refuse("consumer", consumer)

    def unregister_consumer(self, queue: str, consumer: str) -> None:
        _refuse("consumer", consumer)

    def registrations(self, queue: str | None = None, consumer: str | None = None) -> list[Registration]:
        _refuse("consumer", consumer)

    def create_producer(self, name: str, *, exist_ok: bool = False) -> Producer:
        _refuse("producer", name)

    def producer(self, name: str) -> Producer:
        _refuse("producer", name)

    def producers(self) -> list[str]:
        _refuse("producer")

    def drop_producer(self, name: str, *, missing_ok: bool = False) -> None:
        _refuse("producer", name)


def _refuse(kind: str, name: str | None = None) -> NoReturn:
    raise UnsupportedError(
        f"Tablestore has no {kind}s",
        received=None if name is None else repr(name),
        remedy="use tables and tunnels, or keep the queue in an embedded store",
    )
