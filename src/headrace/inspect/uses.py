"""What is lost with a table, queue, consumer or tunnel that is dropped: its tunnels, consumers and readers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import InUseError, NotFoundError

if TYPE_CHECKING:
    from headrace.ports import Store


def check_unused(what: str, *finders: Callable[[], list[str]], by: str) -> None:
    """Raise an error if a table, queue, consumer or tunnel is in use; one that does not exist is not.

    Args:
        what: its kind and name, such as ``queue clicks``.
        finders: each returns what uses it, as texts.
        by: what to add to the command or statement to drop it anyway, such as ``--force``.

    Raises:
        InUseError: it is in use.
    """
    found: list[str] = []
    for find in finders:
        with contextlib.suppress(NotFoundError):
            found += find()
    if found:
        raise InUseError(f"{what} is in use", received=", ".join(found), remedy=f"add {by} to drop it anyway")


def uses_of_table(store: Store, table: str) -> list[str]:
    """Return the tunnels of a table, each with its clients."""
    uses: list[str] = []
    for tunnel in store.tunnels(table):
        clients = uses_of_tunnel(store, tunnel.id)
        uses.append(f"tunnel {tunnel.name}" + (f" ({', '.join(clients)})" if clients else ""))
    return uses


def uses_of_tunnel(store: Store, tunnel: str, table: str | None = None) -> list[str]:
    """Return the connected clients of a tunnel."""
    channels = store.tunnel(tunnel, table).describe().channels
    return [f"client {name}" for name in sorted({each.client_tag or each.client for each in channels if each.client})]


def uses_of_queue(store: Store, queue: str) -> list[str]:
    """Return the consumers that are registered for a queue."""
    return [f"consumer {each.consumer}" for each in store.registrations(queue=queue)]


def uses_of_consumer(store: Store, consumer: str) -> list[str]:
    """Return the queues for which a consumer is registered."""
    return [f"queue {each.queue}" for each in store.registrations(consumer=consumer)]
