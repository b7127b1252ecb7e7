"""The interface of commands: the `Context` and the `Answer` of a command, and the `Command` that describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

import pyarrow as pa

from headrace.stores.embedded.for_servers import Database
from headrace_ytsaurus.endpoint.cypress.cypress import Cypress
from headrace_ytsaurus.endpoint.formats import Format
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.file_contents import Contents
from headrace_ytsaurus.endpoint.tables.past_states import PastStates
from headrace_ytsaurus.endpoint.tables.tablet_transactions import TabletTransactions
from headrace_ytsaurus.endpoint.transactions.transactions import Transactions
from headrace_ytsaurus.wire.types import YtColumn

DataKind: TypeAlias = Literal["binary", "structured", "tabular"]


class ClusterParts(Protocol):
    """The parts of a cluster that commands use; see `headrace_ytsaurus.endpoint.cluster`."""

    name: str
    database: Database
    cypress: Cypress
    contents: Contents
    transactions: Transactions
    tablet_transactions: TabletTransactions
    past_states: PastStates
    commands: Mapping[str, Command]


@dataclass
class Context:
    """The environment of one command: its request, and the cluster. Functions that need one part of it take that part.

    Attributes:
        cluster: shared by all requests.
        user: the owner of the request's token.
        now: time of the request, µs since 1970.
        input_format: format of the rows or the value in the body.
        output_format: format that the client asked for.
        upload: for a command with binary input, a file with the uncompressed body, at its start; ``body`` is empty.
        version: of the API that the client speaks, 3 or 4.
        undo: called if an atomic command fails, or its changes cannot be committed: for what it did outside the store.
    """

    cluster: ClusterParts
    user: str
    now: int
    input_format: Format
    output_format: Format
    upload: BinaryIO | None = None
    version: int = 4
    undo: ExitStack = field(default_factory=ExitStack)

    @property
    def cypress(self) -> Cypress:
        """The tree of nodes."""
        return self.cluster.cypress

    @property
    def database(self) -> Database:
        """The database of the embedded store; each use is a transaction, or part of the command's."""
        return self.cluster.database

    @property
    def transactions(self) -> Transactions:
        """The master transactions."""
        return self.cluster.transactions

    @property
    def tablet_transactions(self) -> TabletTransactions:
        """The transactions of dynamic tables."""
        return self.cluster.tablet_transactions


@dataclass(frozen=True)
class Answer:
    """The answer of a command. Create it with one of the class methods.

    Attributes:
        value: a structured value, to be written in the output format.
        batches: rows with `columns`, to be written in the output format.
        content: bytes of a binary answer, or rows that are already in the output format.
        stream: pieces of such bytes. A thread takes the next piece when the client has read the previous one;
            ``length`` is the number of bytes of all pieces.
        on_disk: the pieces are on disk until a thread takes them.
        parameters: the response parameters, for example ``start_row_index``.
    """

    value: Any = None
    batches: Sequence[pa.RecordBatch] | None = None
    columns: Sequence[YtColumn] = ()
    content: bytes | None = None
    stream: Iterator[bytes] | None = None
    length: int | None = None
    on_disk: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def structured(cls, value: Any = None) -> Answer:
        """Return an answer with a value of plain Python types or those of ``yt.yson``."""
        return cls(value=value)

    @classmethod
    def rows(cls, batches: Sequence[pa.RecordBatch], columns: Sequence[YtColumn], **parameters: Any) -> Answer:
        """Return an answer with rows. Every batch has the columns in the same order."""
        return cls(batches=batches, columns=columns, parameters=parameters)

    @classmethod
    def raw(cls, content: bytes, **parameters: Any) -> Answer:
        """Return an answer with bytes; those of a tabular command are in ``context.output_format``."""
        return cls(content=content, parameters=parameters)

    @classmethod
    def streamed(cls, pieces: Iterator[bytes], length: int, *, on_disk: bool = False, **parameters: Any) -> Answer:
        """Return an answer with bytes that are not all in memory."""
        return cls(stream=pieces, length=length, on_disk=on_disk, parameters=parameters)


Run: TypeAlias = Callable[[Context, Parameters, bytes], Answer | None]


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: the name in the path of a request.
        run: the handler. It is called in a thread with the context, the parameters and the body. None is an empty map.
        input: the kind of body; None if the command has none.
        output: the kind of answer; None if the command has none.
        volatile: the command changes the cluster.
        heavy: clients choose a proxy for the command, and send no mutation id.
        alone: in version 3 of the API, the answer is the value of one of these keys instead of the whole map.
        own_transactions: the handler begins the store's transactions itself, if it needs any.
    """

    name: str
    run: Run
    input: DataKind | None = None
    output: DataKind | None = "structured"
    volatile: bool = False
    heavy: bool = False
    alone: tuple[str, ...] = ()
    own_transactions: bool = False

    @property
    def atomic(self) -> bool:
        """Whether the command, with its mutation id, is one write transaction of the store, undone if it fails.

        The command holds the store's writer lock, so it must be quick and must not wait for another writing thread.
        """
        return self.volatile and not self.heavy and not self.own_transactions
