"""The metrics of a process: operations of stores and requests to servers; and of a store: lag of its readers, disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.errors import HeadraceError
from headrace.model.tunnels.lag import Lag
from headrace.ports import Store
from headrace.support import counters

MOST_READERS = 200
"""The metrics have at most this number of tunnels and of registrations of consumers."""
_log = logging.getLogger("headrace")


class OperationCollector(Collector):
    """Collects the operations of stores and the requests to servers of this process.

    They are in `headrace.support.counters`.
    """

    def __init__(self) -> None:
        counters.enable()

    def collect(self) -> Iterator[Metric]:
        yield from _families(
            "store",
            "headrace_store_operations",
            "Calls of this process to stores.",
            ("operation", "outcome"),
        )
        yield from _families(
            "http",
            "headrace_http_requests",
            "Requests to the servers of this process: checkpoint_server, endpoints.tablestore, endpoints.ytsaurus, ui.",
            ("server", "method", "status"),
        )
        nulled = CounterMetricFamily(
            "headrace_unrepresentable_values",
            "Values that this process has shown as null, by option unrepresentable.",
            labels=("table", "column"),
        )
        for labels, tally in sorted(counters.of_family("unrepresentable").items()):
            nulled.add_metric(labels, tally.count)
        yield nulled
        yield from _families(
            "mirror",
            "headrace_mirror_changes",
            "Changes that a mirror without Spark has copied in this process.",
            ("table",),
        )
        refused = CounterMetricFamily(
            "headrace_mirror_refused_rows",
            "Rows that the copy of a mirror without Spark has refused in this process.",
            labels=("table",),
        )
        for labels, tally in sorted(counters.of_family("mirror_refused").items()):
            refused.add_metric(labels, tally.count)
        yield refused


def _families(family: str, name: str, text: str, labels: tuple[str, ...]) -> Iterator[Metric]:
    count = CounterMetricFamily(name, text, labels=labels)
    seconds = CounterMetricFamily(f"{name}_seconds", f"{text[:-1]}: their seconds in total.", labels=labels)
    for values, tally in sorted(counters.of_family(family).items()):
        count.add_metric(values, tally.count)
        seconds.add_metric(values, tally.seconds)
    yield from (count, seconds)


class StoreCollector(Collector):
    """Collects the lag of the tunnels and consumers of a store, by a call to the store for each of them; and its disk.

    Args:
        store: an open store, which the caller closes.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> list[Metric]:
        """Return no metrics: a registry would otherwise collect them when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        reachable = GaugeMetricFamily("headrace_store_reachable", "0 if the store did not answer.")
        try:
            yield from list(self._families())
            reachable.add_metric([], 1)
        except HeadraceError as error:
            # The metrics of streams, which may have failed for the same reason, are needed all the more.
            _log.warning("the metrics of the store are missing: %s", error)
            reachable.add_metric([], 0)
        yield reachable

    def _families(self) -> Iterator[Metric]:
        if self._store.capabilities.tunnels:
            yield from self._tunnels()
        if self._store.capabilities.queues:
            yield self._consumers()
        yield from self._disk()

    def _tunnels(self) -> Iterator[Metric]:
        rows = _of_tunnels("headrace_tunnel_lag_rows", "Known unread rows of a tunnel.")
        unknown = _of_tunnels(
            "headrace_tunnel_lag_unknown_channels", "Channels with more unread rows than the lag counts."
        )
        ranges = _of_tunnels("headrace_tunnel_base_ranges", "Key ranges of a tunnel's base data.", "state")
        ages = _of_tunnels("headrace_tunnel_lag_seconds", "Age of the oldest unread change of a tunnel.")
        unread = _of_tunnels(
            "headrace_tunnel_lag_bytes", "Log of a server of PostgreSQL behind the committed position."
        )
        limits = _of_tunnels("headrace_tunnel_slot_limit_bytes", "The max_slot_bytes of a tunnel, if it has one.")
        retained = _of_tunnels("headrace_tunnel_retained_bytes", "Log that a server of PostgreSQL keeps for a tunnel.")
        slots = _of_tunnels(
            "headrace_tunnel_slot_status", "1 for the wal_status of the replication slot of a tunnel.", "status"
        )
        errors = _of_tunnels("headrace_tunnel_last_error", "1 for the kind of error with which reads fail.", "error")
        warnings = _of_tunnels("headrace_tunnel_warnings", "Warnings in the description of a tunnel.")
        for tunnel in self._store.tunnels()[:MOST_READERS]:
            description = tunnel.describe()
            status = description.details.get("wal_status")
            names, lag = [description.table, description.name], description.lag
            if lag.seconds is not None:
                ages.add_metric(names, lag.seconds)
            rows.add_metric(names, lag.rows)
            warnings.add_metric(names, len(description.warnings))
            unknown.add_metric(names, lag.unknown)
            ranges.add_metric([*names, "read"], lag.ranges_done)
            ranges.add_metric([*names, "unread"], lag.ranges - lag.ranges_done)
            for family, detail in ((retained, "retained_bytes"), (unread, "lag_bytes"), (limits, "max_slot_bytes")):
                if (size := description.details.get(detail)) is not None:
                    family.add_metric(names, int(size))
            if status is not None:
                slots.add_metric([*names, str(status)], 1)
            if (error := description.details.get("last_error")) is not None:
                errors.add_metric([*names, str(error).partition(":")[0]], 1)
        yield from (rows, unknown, ages, ranges, retained, unread, limits, slots, errors, warnings)

    def _consumers(self) -> Metric:
        family = GaugeMetricFamily(
            "headrace_consumer_lag_rows", "Unread rows of a consumer in a queue.", labels=["queue", "consumer"]
        )
        registrations = [
            (each.queue, consumer)
            for consumer in map(self._store.consumer, self._store.consumers())
            for each in consumer.registrations()
        ]
        for queue, consumer in registrations[:MOST_READERS]:
            family.add_metric([queue, consumer.name], Lag.of_consumer(consumer.status(queue)).rows)
        return family

    def _disk(self) -> Iterator[Metric]:
        disk = self._store.disk()
        free = GaugeMetricFamily("headrace_store_disk_free_bytes", "Free space where the files of the store are.")
        size = GaugeMetricFamily(
            "headrace_store_disk_size_bytes", "Size of the file system with the files of the store."
        )
        if disk is not None:
            free.add_metric([], disk.free)
            size.add_metric([], disk.size)
        yield from (free, size)


def _of_tunnels(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["table", "tunnel", *labels])
