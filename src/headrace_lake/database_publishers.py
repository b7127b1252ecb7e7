"""The common part of publishers into lakes with a catalog in a PostgreSQL database, which has the markers, too."""

from __future__ import annotations

from headrace.ports import Publisher
from headrace.stores.postgres.for_lakes import PostgresPublisher


class CatalogPublisher(Publisher):
    """Publishes the batches of one sink of a job, each exactly once, in transactions of the catalog's database.

    Args:
        inner: the publisher of the database, which has the markers.
    """

    def __init__(self, inner: PostgresPublisher) -> None:
        self.job = inner.job
        self.sink = inner.sink
        self._inner = inner

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, sink={self.sink!r})"

    def published(self, batch: int) -> bool:
        return self._inner.published(batch)

    def last_batch(self) -> int | None:
        return self._inner.last_batch()
