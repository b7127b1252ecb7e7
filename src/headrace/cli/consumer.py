"""``headrace consumer``: consumers of queues, and their progress."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, CommandGroup
from headrace.cli.arguments import row_numbers
from headrace.cli.drop import force_option
from headrace.cli.watching import watch_lag
from headrace.inspect.uses import check_unused, uses_of_consumer
from headrace.model.tunnels.lag import Lag
from headrace.support.instants import instant

if TYPE_CHECKING:
    from headrace.model.queues.values import ConsumerPartition
    from headrace.ports import Consumer, Store

_COLUMNS = (
    "queue", "partition", "offset", "lower", "upper", "disposition", "unread_rows", "unread_weight", "lag_seconds",
    "last_consumed",
)  # fmt: skip


@click.group(cls=CommandGroup, short_help="Create, show and change read offsets over queues.", no_args_is_help=False)
def consumer() -> None:
    """Create, show and change consumers: named read offsets over the partitions of queues.

    \b
    Example:
      headrace consumer create //home/stats -s shop
      headrace consumer register //home/stats clicks --vital -s shop
      headrace consumer describe //home/stats --watch -s shop
    """


@consumer.store_command("list")
@click.option("-q", "--queue", metavar="NAME", help="Only the consumers of this queue.")
def list_consumers(app: App, queue: str | None) -> None:
    """List the consumers of the store, with the queues that they are registered for.

    Example: headrace consumer list --queue clicks -s shop
    """
    with app.store() as store:
        records = registered(store, queue)
    app.output.records(
        records,
        columns=("name", "queue", "vital", "unread_rows", "lag_seconds"),
        nothing="The store has no consumers." if queue is None else f"Queue {queue} has no consumers.",
    )


@consumer.store_command("create")
@click.argument("name")
@click.option("--if-not-exists", is_flag=True, help="Keep an existing consumer as it is.")
def create_consumer(app: App, name: str, if_not_exists: bool) -> None:
    """Create a consumer. It can read a queue after it is registered for it.

    Example: headrace consumer create //home/stats -s shop
    """
    with app.store() as store:
        new = not if_not_exists or name not in store.consumers()
        store.create_consumer(name, exist_ok=if_not_exists)
    app.output.created("consumer", name, new=new)


@consumer.store_command("register")
@click.argument("name")
@click.argument("queue")
@click.option("--vital", is_flag=True, help="Automatic trimming keeps rows that this consumer has not read.")
def register(app: App, name: str, queue: str, vital: bool) -> None:
    """Register a consumer for a queue, or change whether it is vital.

    Example: headrace consumer register //home/stats clicks --vital -s shop
    """
    with app.store() as store:
        store.register_consumer(queue, name, vital=vital)
    how = "as vital " if vital else ""
    app.output.done(f"Registered consumer {name} {how}for queue {queue}.", consumer=name, queue=queue, vital=vital)


@consumer.store_command("unregister")
@click.argument("name")
@click.argument("queue")
def unregister(app: App, name: str, queue: str) -> None:
    """Remove the registration of a consumer for a queue. Its offsets stay.

    Example: headrace consumer unregister //home/stats clicks -s shop
    """
    with app.store() as store:
        was_registered = bool(store.registrations(queue, name))
        store.unregister_consumer(queue, name)
    how = "is no longer registered" if was_registered else "was not registered"
    app.output.done(
        f"Consumer {name} {how} for queue {queue}.", consumer=name, queue=queue, was_registered=was_registered
    )


@consumer.store_command("describe")
@click.argument("name")
@click.option("-q", "--queue", metavar="NAME", help="Only this queue; by default all queues that it is registered for.")
@click.option("--watch", is_flag=True, help="Refresh until interrupted.")
def describe_consumer(app: App, name: str, queue: str | None, watch: bool) -> None:
    """Show the offset, the unread rows and the lag of a consumer in each partition.

    Example: headrace consumer describe //home/stats --watch -s shop
    """
    with app.store() as store:
        found = store.consumer(name)
        registered_for = [registration.queue for registration in found.registrations()]
        if not registered_for if queue is None else queue not in registered_for:
            arguments = f"{shlex.quote(name)} {'QUEUE' if queue is None else shlex.quote(queue)}"
            app.output.note(
                f"Consumer {name} is not registered for {'any queue' if queue is None else f'queue {queue}'}."
                f" To read it: headrace consumer register {arguments}"
            )
        if not watch:
            app.output.record(consumer_details(found, queue))
            return

        def read() -> tuple[str, Lag, dict[str, Any]]:
            facts = consumer_details(found, queue)
            line = f"{name}: {facts['unread_rows']} unread rows, {facts['lag_seconds']} s behind"
            return line, Lag(facts["unread_rows"]), facts

        watch_lag(app.output, read, "partitions", _COLUMNS)


# Its name in earlier releases.
_status_command = copy.copy(describe_consumer)
_status_command.hidden = True
consumer.add_command(_status_command, "status")


@consumer.store_command("advance")
@click.argument("name")
@click.argument("queue")
@click.argument("offsets", nargs=-1, required=True, metavar="PARTITION=ROW…")
@click.option(
    "--expect", multiple=True, metavar="PARTITION=ROW", help="Fail without a change unless the offset is this."
)
def advance(app: App, name: str, queue: str, offsets: tuple[str, ...], expect: tuple[str, ...]) -> None:
    """Set the first unread row of partitions, forwards or backwards, in one transaction.

    A streaming query follows its own checkpoint. Stop it first, and start it with a new checkpoint location.

    Example: headrace consumer advance //home/stats clicks 0=1000 1=950 -s shop
    """
    rows = row_numbers(offsets, "PARTITION=ROW")
    with app.store() as store:
        store.consumer(name).advance(queue, rows, row_numbers(expect, "--expect") or None)
    app.output.done(f"Offsets of consumer {name} in queue {queue}: {rows}.", consumer=name, queue=queue, offsets=rows)


@consumer.store_command("drop")
@click.argument("name")
@click.option("--if-exists", is_flag=True, help="Do nothing if there is no such consumer.")
@force_option
def drop_consumer(app: App, name: str, if_exists: bool, force: bool) -> None:
    """Remove a consumer with its registrations and offsets.

    Example: headrace consumer drop //home/stats -s shop
    """
    with app.store() as store:
        if not force:
            check_unused(f"consumer {name}", lambda: uses_of_consumer(store, name), by="--force")
        found = not if_exists or name in store.consumers()
        store.drop_consumer(name, missing_ok=if_exists)
    app.output.dropped("consumer", name, found=found)


def registered(store: Store, queue: str | None, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """Return one record for each registration. Without ``queue``, also one for each consumer without registrations.

    Args:
        names: the consumers; by default all.
    """
    records: list[dict[str, Any]] = []
    for name in store.consumers() if names is None else names:
        found = store.consumer(name)
        registrations = [item for item in found.registrations() if queue in (None, item.queue)]
        for registration in registrations:
            totals = _totals(found.status(registration.queue))
            records.append({"name": name, "queue": registration.queue, "vital": registration.vital, **totals})
        if not registrations and queue is None:
            records.append({"name": name, "queue": None, "vital": None, "unread_rows": None, "lag_seconds": None})
    return records


def consumer_details(found: Consumer, queue: str | None) -> dict[str, Any]:
    """Return the progress of a consumer in the partitions of ``queue``, or of all queues that it is registered for."""
    queues = [registration.queue for registration in found.registrations()] if queue is None else [queue]
    partitions = [(name, partition) for name in queues for partition in found.status(name)]
    return {
        "consumer": found.name,
        **_totals([partition for _, partition in partitions]),
        "partitions": [
            {
                "queue": name,
                "partition": partition.partition,
                "offset": partition.offset,
                "lower": partition.bounds.lower,
                "upper": partition.bounds.upper,
                "disposition": str(partition.disposition),
                "unread_rows": partition.unread_rows,
                "unread_weight": partition.unread_weight,
                "lag_seconds": round(partition.lag_seconds, 3),
                "last_consumed": instant(partition.last_consumed),
            }
            for name, partition in partitions
        ],
    }


def _totals(partitions: Sequence[ConsumerPartition]) -> dict[str, Any]:
    lag = Lag.of_consumer(partitions)
    return {"unread_rows": lag.rows, "lag_seconds": round(lag.seconds or 0.0, 3)}
