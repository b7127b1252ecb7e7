"""The connection to a cluster: one client for each process and thread, transactions, and rows as bytes.

`headrace_ytsaurus.wire.yson` encodes and decodes rows as binary YSON, so the client's native bindings are not needed
for rows; they only make parameters and attributes faster.
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

from headrace.errors import StoreBusyError
from headrace.support import failpoints
from headrace.support.retries import Retries
from headrace_ytsaurus.store.failures import YtNotFoundError, YtTransactionLostError, YtUnmountedError, translated
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows

ROWS_PER_REQUEST = 50_000
_BYTES_PER_REQUEST = 64 << 20
ROWS_PER_TABLET = 100_000
"""The default limit of clusters for the rows of one tablet in a transaction."""
_TRANSACTION_MS = 300_000
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 100, 10_000
# A transaction is lost with its proxy. So another proxy is chosen before the time limit of the cluster ends.
_ONE_PROXY_SECONDS = 10.0
_PULL_BYTES = 64 << 20
# The addresses for which a thread keeps clients: a new connection needs several requests.
_MOST_ADDRESSES = 8
_log = logging.getLogger("headrace")
_clients = threading.local()
_Result = TypeVar("_Result")
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class Address:
    """The address of a cluster and options of requests. It can be pickled, with the token; no message shows the token.

    Attributes:
        proxy: the proxy for YTsaurus' client: a name, ``host:port``, or a URL.
        token: None uses the configuration of the client.
        retry_seconds: how long a request with a temporary error is repeated.
        binary_strings: whether columns of the cluster's type ``string`` are binary.
    """

    proxy: str
    token: str | None = None
    retry_seconds: float = 120.0
    binary_strings: bool = False

    def __repr__(self) -> str:
        return f"Address({self.proxy!r})"

    def make_client(self, proxy: str | None = None) -> YtClient:
        """Return a new client; with ``proxy``, it uses only that one."""
        config = get_config_from_env()
        # The other backends do not use proxies and do not accept rows as bytes.
        config["backend"] = "http"
        # YSON is compact, and compression takes longer than the transfer in a data centre.
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


class YtConnection:
    """Requests to a cluster. Threads and processes can share it; each has its own clients."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def __repr__(self) -> str:
        return f"YtConnection({self.address.proxy!r})"

    @property
    def client(self) -> YtClient:
        """The client of this process and thread; its calls raise the client's errors, see `translated`."""
        return self._of_this_thread("client", lambda: self.address.make_client())

    def close(self) -> None:
        """Close the connections of this thread."""
        _close(_of_this_process().pop(self.address, {}))

    def _of_this_thread(self, kind: str, make: Any) -> YtClient:
        found = _of_this_process()
        # The last address is the one that was used last.
        clients = found[self.address] = found.pop(self.address, {})
        while len(found) > _MOST_ADDRESSES:
            _close(found.pop(next(iter(found))))
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
        """Return the existing attributes of a node; None if the node does not exist."""
        try:
            with translated():
                found = self.client.get(f"{path}/@", attributes=list(names))
        except YtNotFoundError:
            return None
        return {str(name): value for name, value in found.items() if name in names}

    def attribute(self, path: str, name: str, default: Any = None) -> Any:
        """Return one attribute of a node; the default if the attribute or the node does not exist."""
        try:
            with translated():
                return self.client.get(f"{path}/@{name}")
        except YtNotFoundError:
            return default

    def children(self, path: str, attributes: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return the names in a directory, each with attributes; empty if the directory does not exist."""
        try:
            with translated(f"list {path}"):
                found = self.client.list(path, attributes=list(attributes))
        except YtNotFoundError:
            return []
        return [(str(name), dict(getattr(name, "attributes", {}))) for name in found]

    def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a node, if it exists."""
        with translated(f"remove {path}"):
            self.client.remove(path, recursive=recursive, force=True)

    # -- files ------------------------------------------------------------------------------------------

    # The client's functions for files make up to ten requests each (transactions, locks, local mode).

    def write_file(self, path: str, data: bytes) -> None:
        """Replace the content of a file node atomically. The call may be repeated."""

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
        """Write rows to a dynamic table, in requests of the size that `parts` chooses.

        Args:
            columns: the columns of the rows, in their order.
            update: keep the cells of columns that the rows do not have.
            client: the client of a transaction; by default each request is its own transaction.
        """
        for data in encoded(rows, columns):
            self.insert_encoded(path, data, update=update, client=client)

    def insert_encoded(self, path: str, data: bytes, *, update: bool = False, client: Any = None) -> None:
        """Write rows in one request; see `insert` and `encoded`."""
        with translated(f"write to {path}"):
            (client or self.client).insert_rows(path, data, update=update or None, format=_ROWS, raw=True)

    def delete(self, path: str, keys: pa.RecordBatch, columns: Sequence[YtColumn], *, client: Any = None) -> None:
        """Remove rows from a sorted table."""
        for data in encoded(keys, columns):
            self.delete_encoded(path, data, client=client)

    def delete_encoded(self, path: str, data: bytes, *, client: Any = None) -> None:
        """Remove rows in one request; see `delete` and `encoded`."""
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
        """Return the existing rows of some keys."""
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
        """Return rows of a queue's partition, from the first existing row at or after a row index."""

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
        """Return the whole response to a read, with retries: the client's own end when a response begins.

        Args:
            client: the client of a transaction; its reads are not repeated.
        """

        def read() -> bytes:
            with translated(what):
                return bytes(ask(client or self.client).read())

        return read() if client is not None else self.repeated(read)

    # -- transactions -------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self) -> Iterator[Callable[[str, Sequence[YtColumn]], pa.RecordBatch]]:
        """Return a function like `select` that sees one state of all tables, for any time.

        The caller may pause between two calls, and make other calls in the same thread.
        """
        # A separate client: the thread's other calls may be in another transaction.
        client, transaction = self._begin("snapshots")
        used = time.monotonic()

        def select(query: str, columns: Sequence[YtColumn]) -> pa.RecordBatch:
            nonlocal used
            if time.monotonic() - used > _TRANSACTION_MS / 1000 / 5:
                with translated("keep a transaction"):
                    client.ping_transaction(transaction)
            used = time.monotonic()
            # Only around the call: other calls between two of these are not part of the transaction.
            with client.Transaction(transaction_id=transaction, acquire=False, ping=False):
                return self.select(query, columns, client=client)

        try:
            yield select
        finally:
            self._abort(client, transaction)

    @contextmanager
    def transaction(self) -> Iterator[YtClient]:
        """Run a tablet transaction: yield a client whose calls are part of it, and commit at the end.

        A tablet transaction exists in one proxy, so all calls go to one proxy. The commit sends the writes to the
        tablets; before it nothing is locked, and an abandoned transaction expires.

        Raises:
            YtTransactionLostError: the response to the commit was lost, and its result is unknown; or the transaction
                had expired.
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
        """Begin a tablet transaction; return its id, and this thread's client of its proxy."""

        def begin() -> tuple[YtClient, str]:
            client = self._of_this_thread(use, self._make_pinned)
            try:
                with translated("start a transaction"):
                    return client, str(client.start_transaction(type="tablet", sticky=True, timeout=_TRANSACTION_MS))
            except StoreBusyError:
                # The proxy may be down: the next transaction chooses any proxy of the cluster.
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
    """Return this thread's clients by address. A forked process creates new ones: connections cannot be shared."""
    if getattr(_clients, "process", None) != os.getpid():
        _clients.process = os.getpid()
        _clients.found = {}
    found: dict[Address, dict[str, YtClient]] = _clients.found
    return found


def _close(clients: Mapping[str, YtClient]) -> None:
    """Close the idle connections of clients. Responses that are being read go on."""
    for client in clients.values():
        session = client.__dict__.get("_requests_session")
        if session is not None:
            session.close()


def encoded(rows: pa.RecordBatch, columns: Sequence[YtColumn]) -> Iterator[bytes]:
    """Yield the bodies of the requests that write or remove rows, in their order."""
    return (encode_rows(part, columns) for part in parts(rows))


def parts(rows: _Rows, most: int = ROWS_PER_REQUEST) -> list[_Rows]:
    """Cut rows into parts for requests, by their number and approximate size."""
    return [part for first in range(0, rows.num_rows, most) for part in _halved(rows.slice(first, most))]


def _halved(rows: _Rows) -> list[_Rows]:
    # In YSON each row contains the names of its columns.
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
    """Return a nested value of attributes; None if a name is missing."""
    found: Any = value
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
