"""The store's way to a cluster: one client for each process and thread, transactions, and rows as bytes.

Rows go both ways as binary YSON that `headrace.wire.yson` reads and writes, so the client's native bindings are not
needed for them; they only make parameters and attributes faster.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from yt.wrapper import YsonFormat, YtClient
from yt.wrapper.default_config import get_config_from_env
from yt.wrapper.driver import make_request
from yt.wrapper.http_driver import HeavyProxyProvider

from headrace import failpoints
from headrace.errors import StoreBusyError
from headrace.retries import Retries
from headrace.stores.ytsaurus.failures import YtNotFoundError, YtTransactionLostError, YtUnmountedError, translated
from headrace.wire.yson.rows_decoding import decode_rows
from headrace.wire.yson.rows_encoding import encode_rows
from headrace.wire.ytsaurus.types import YtColumn

ROWS_PER_REQUEST = 50_000
_BYTES_PER_REQUEST = 64 << 20
ROWS_PER_TABLET = 100_000
"""Most rows of one tablet in a transaction that clusters take by default."""
_TRANSACTION_MS = 300_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 10_000
# A transaction is lost with its proxy, so that one is given up for another before the patience with the cluster ends.
_ONE_PROXY_SECONDS = 10.0
_PULL_BYTES = 64 << 20
_log = logging.getLogger("headrace")
_clients = threading.local()
_Result = TypeVar("_Result")
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class Address:
    """Where a cluster is, and how it is asked. It can be pickled, with the token; nothing shows the token.

    Attributes:
        proxy: as YTsaurus' client takes it: a name, ``host:port``, or a URL.
        token: None leaves it to the client's own configuration.
        retry_seconds: how long a request is tried again that may pass later.
        binary_strings: whether columns of the cluster's type ``string`` are binary here.
    """

    proxy: str
    token: str | None = None
    retry_seconds: float = 120.0
    binary_strings: bool = False

    def __repr__(self) -> str:
        return f"Address({self.proxy!r})"

    def make_client(self, proxy: str | None = None) -> YtClient:
        """Return a new client; one that is given a proxy asks that one only."""
        config = get_config_from_env()
        # The other backends speak to the cluster past the proxies, and take no rows as bytes.
        config["backend"] = "http"
        # Rows are as small as YSON makes them, and compressing costs more time than a data centre's network.
        config["proxy"]["content_encoding"] = config["proxy"]["content_encoding"] or "identity"
        config["proxy"]["accept_encoding"] = config["proxy"]["accept_encoding"] or "identity"
        patience = self.retry_seconds if proxy is None else min(_ONE_PROXY_SECONDS, self.retry_seconds / 4)
        for retries in (config["proxy"]["retries"], config["dynamic_table_retries"]):
            retries["total_timeout"] = patience * 1000
            policy = retries["backoff"]["exponential_policy"]
            policy["start_timeout"], policy["max_timeout"] = _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS
        if proxy is not None:
            config["proxy"]["enable_proxy_discovery"] = False
        return YtClient(proxy=proxy or self.proxy, token=self.token, config=config)


class Connection:
    """What the store's parts ask a cluster for. Threads and processes may share it: each has clients of its own."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"Connection({self.address.proxy!r})"

    @property
    def client(self) -> YtClient:
        """The client of this process and thread; its calls raise the client's errors, see `translated`."""
        return self._of_this_thread("client", lambda: self.address.make_client())

    def close(self) -> None:
        """Forget the connections of this thread."""
        for client in _of_this_process().pop(self.address, {}).values():
            session = client.__dict__.get("_requests_session")
            if session is not None:
                session.close()

    def _of_this_thread(self, kind: str, make: Any) -> YtClient:
        clients = _of_this_process().setdefault(self.address, {})
        if kind not in clients:
            clients[kind] = make()
        return clients[kind]

    def repeated(
        self, call: Callable[[], _Result], errors: tuple[type[Exception], ...] = (StoreBusyError, YtUnmountedError)
    ) -> _Result:
        """Return the result of a call that may be repeated. Repeat it while the cluster is busy.

        Args:
            errors: the errors after which it is repeated.
        """
        retries = Retries(
            self.address.retry_seconds,
            first_pause=_FIRST_PAUSE_MS / 1000,
            longest_pause=_LONGEST_PAUSE_MS / 1000,
        )
        while True:
            try:
                return call()
            except errors as error:
                if not retries.wait(f"YTsaurus: {error}"):
                    raise

    # -- Cypress ----------------------------------------------------------------------------------------

    def attributes(self, path: str, names: Sequence[str]) -> dict[str, Any] | None:
        """Return attributes of a node, those that it has; None if there is no such node."""
        try:
            with translated():
                found = self.client.get(f"{path}/@", attributes=list(names))
        except YtNotFoundError:
            return None
        return {str(name): value for name, value in found.items() if name in names}

    def attribute(self, path: str, name: str, default: Any = None) -> Any:
        """Return one attribute of a node; the default if it, or the node, is not there."""
        try:
            with translated():
                return self.client.get(f"{path}/@{name}")
        except YtNotFoundError:
            return default

    def children(self, path: str, attributes: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return the names under a directory, each with its attributes; nothing if it is not there."""
        try:
            with translated(f"list {path}"):
                found = self.client.list(path, attributes=list(attributes))
        except YtNotFoundError:
            return []
        return [(str(name), dict(getattr(name, "attributes", {}))) for name in found]

    def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a node; nothing happens if it is not there."""
        with translated(f"remove {path}"):
            self.client.remove(path, recursive=recursive, force=True)

    # -- files ------------------------------------------------------------------------------------------

    # The client's own functions for files make up to ten requests each (transactions, locks, local mode).

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the content of a file node. It is there as a whole or not at all, and may be written again."""

        def write() -> None:
            with translated(f"write file {path}"):
                make_request("write_file", {"path": path}, data=data, client=self.client)

        self.repeated(write)

    def open_file(self, path: str, offset: int = 0, length: int | None = None) -> Any:
        """Return a stream of a file's bytes; its method ``read`` raises the client's errors, see `translated`."""
        parameters: dict[str, Any] = {"path": path, "offset": offset}
        if length is not None:
            parameters["length"] = length
        with translated(f"read file {path}"):
            return make_request("read_file", parameters, return_content=False, client=self.client)

    # -- rows -------------------------------------------------------------------------------------------

    def insert(
        self, path: str, rows: pa.RecordBatch, columns: Sequence[YtColumn], *, update: bool = False, client: Any = None
    ) -> None:
        """Write rows to a dynamic table, as many in a request as `parts` tells.

        Args:
            columns: of the rows, in their order.
            update: keep the cells of columns that the rows do not have.
            client: that of a transaction; otherwise each request is one of its own.
        """
        for part in parts(rows):
            data = encode_rows(part, columns)
            with translated(f"write to {path}"):
                (client or self.client).insert_rows(path, data, update=update or None, format=_ROWS, raw=True)

    def delete(self, path: str, keys: pa.RecordBatch, columns: Sequence[YtColumn], *, client: Any = None) -> None:
        """Remove rows from a sorted table."""
        for part in parts(keys):
            data = encode_rows(part, columns)
            with translated(f"delete from {path}"):
                (client or self.client).delete_rows(path, data, format=_ROWS, raw=True)

    def lookup(
        self,
        path: str,
        keys: pa.RecordBatch,
        key_columns: Sequence[YtColumn],
        columns: Sequence[YtColumn],
        *,
        client: Any = None,
    ) -> pa.RecordBatch:
        """Return the rows of these keys that are there."""
        names = [column.name for column in columns]
        data = encode_rows(keys, key_columns)

        def ask(client: YtClient) -> Any:
            return client.lookup_rows(path, data, column_names=names, format=_ROWS, raw=True)

        return decode_rows(self._answer(f"read from {path}", ask, client), columns)

    def select(self, query: str, columns: Sequence[YtColumn], *, client: Any = None) -> pa.RecordBatch:
        """Return the rows of a query, in these columns."""

        def ask(client: YtClient) -> Any:
            return client.select_rows(
                query, input_row_limit=_MOST_ROWS, output_row_limit=_MOST_ROWS, format=_ROWS, raw=True
            )

        return decode_rows(self._answer("select rows", ask, client), columns)

    def pull(
        self, path: str, partition: int, first_row: int, max_rows: int, columns: Sequence[YtColumn]
    ) -> pa.RecordBatch:
        """Return rows of a queue's partition, from the first that is there at or behind a row index on."""

        def ask(client: YtClient) -> Any:
            return client.pull_queue(
                path,
                first_row,
                partition,
                max_row_count=max_rows,
                max_data_weight=_PULL_BYTES,
                format=_ROWS,
                raw=True,
            )

        return decode_rows(self._answer(f"read queue {path}", ask), columns)

    def _answer(self, what: str, ask: Callable[[YtClient], Any], client: YtClient | None = None) -> bytes:
        """Return the whole answer to a read; the client's own retries end where an answer begins to come.

        Args:
            client: that of a transaction, in which nothing is asked again.
        """

        def read() -> bytes:
            with translated(what):
                return bytes(ask(client or self.client).read())

        return read() if client is not None else self.repeated(read)

    # -- transactions -------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[Callable[[str, Sequence[YtColumn]], pa.RecordBatch]]:
        """Give a function like `select` that sees one state of all tables, however long it is used.

        It may be left unused for a while between two calls, and other calls be made by the same thread.
        """
        # A client of its own: the thread may be within a transaction, which its other calls are part of.
        client, transaction = self._begin("snapshots")
        used = time.monotonic()

        def select(query: str, columns: Sequence[YtColumn]) -> pa.RecordBatch:
            nonlocal used
            if time.monotonic() - used > _TRANSACTION_MS / 1000 / 5:
                with translated("keep a transaction"):
                    client.ping_transaction(transaction)
            used = time.monotonic()
            # Not around the whole use: what is done in between is not part of the transaction.
            with client.Transaction(transaction_id=transaction, acquire=False, ping=False):
                return self.select(query, columns, client=client)

        try:
            yield select
        finally:
            self._abort(client, transaction)

    @contextmanager
    def transaction(self) -> Iterator[YtClient]:
        """Give a client whose calls are part of one tablet transaction, and commit it at the end.

        A tablet transaction lives in one proxy, so one is chosen and all calls go there. What is written is sent to the
        tablets by the commit; until then nothing is locked, and an abandoned transaction only waits for its time-out.

        Raises:
            YtTransactionLostError: the commit was not answered, so that nobody knows whether it happened; or the
                transaction had expired.
        """
        client, transaction = self._begin("transactions")
        try:
            with client.Transaction(transaction_id=transaction, acquire=False, ping=False):
                yield client
        except BaseException:
            self._abort(client, transaction)
            raise
        try:
            failpoints.reach("uncommitted")
            with translated("commit"):
                client.commit_transaction(transaction)
            failpoints.reach("committed")
        except Exception:
            self._abort(client, transaction)
            raise

    def _begin(self, use: str) -> tuple[YtClient, str]:
        """Begin a tablet transaction; return it, and this thread's client of the one proxy that knows it."""

        def begin() -> tuple[YtClient, str]:
            client = self._of_this_thread(use, self._make_pinned)
            try:
                with translated("start a transaction"):
                    return client, str(client.start_transaction(type="tablet", sticky=True, timeout=_TRANSACTION_MS))
            except StoreBusyError:
                # The proxy may be gone for good: next time any that the cluster has now is chosen.
                del _of_this_process()[self.address][use]
                raise

        return self.repeated(begin)

    def _make_pinned(self) -> YtClient:
        with translated("choose a proxy"):
            return self.address.make_client(HeavyProxyProvider(self.client)())

    @staticmethod
    def _abort(client: YtClient, transaction: str) -> None:
        try:
            with translated():
                client.abort_transaction(transaction)
        except YtTransactionLostError:
            pass
        except Exception:
            _log.debug("transaction %s was not aborted and will expire", transaction, exc_info=True)


_ROWS = YsonFormat(format="binary", require_yson_bindings=False)
_MOST_ROWS = 10_000_000


def _of_this_process() -> dict[Address, dict[str, YtClient]]:
    """Return this thread's clients by address; a forked process begins anew, for connections cannot be shared."""
    if getattr(_clients, "process", None) != os.getpid():
        _clients.process = os.getpid()
        _clients.found = {}
    found: dict[Address, dict[str, YtClient]] = _clients.found
    return found


def parts(rows: _Rows, most: int = ROWS_PER_REQUEST) -> list[_Rows]:
    """Return rows in parts that one request takes, in their order: by their number, and by about their size."""
    return [part for first in range(0, rows.num_rows, most) for part in _halved(rows.slice(first, most))]


def _halved(rows: _Rows) -> list[_Rows]:
    # In YSON each row has the names of the columns in it.
    names = sum(len(name) + 4 for name in rows.schema.names)
    if rows.nbytes + rows.num_rows * names <= _BYTES_PER_REQUEST or rows.num_rows <= 1:
        return [rows]
    half: int = rows.num_rows // 2
    return [*_halved(rows.slice(0, half)), *_halved(rows.slice(half))]


def as_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch."""
    batches = rows.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def nested(value: Mapping[str, Any] | None, *names: str) -> Any:
    """Return what lies under names, one below the other, in attributes; None where one is missing."""
    found: Any = value
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
