"""The commands of the endpoint: how one is registered, what it gets, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias, TypeVar

import pyarrow as pa

from headrace.endpoints.ytsaurus.parameters import Parameters
from headrace.wire.ytsaurus.types import YtColumn

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster
    from headrace.endpoints.ytsaurus.cypress.cypress import Cypress
    from headrace.endpoints.ytsaurus.formats import Format
    from headrace.endpoints.ytsaurus.transactions.transactions import Transactions
    from headrace.stores.embedded.store import EmbeddedStore

__all__ = ["COMMANDS", "Answer", "Command", "Context", "Parameters", "command"]

DataKind: TypeAlias = Literal["binary", "structured", "tabular"]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Answer:
    """What a command answers; make one with the class methods, all of which leave the rest empty.

    Attributes:
        value: a structured value, written in the output format that was asked for.
        batches: rows, written in the output format that was asked for, with `columns`.
        content: bytes as they are, of a binary command, or rows that the command itself has written.
        stream: bytes piece by piece, each taken from the iterator in a thread when the client has read the one before;
            ``length`` is how many they are together.
        on_disk: the bytes of the stream are on disk until then.
        parameters: what the response parameters tell, such as ``start_row_index``.
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
        """Answer a value of plain Python types or those of ``yt.yson``."""
        return cls(value=value)

    @classmethod
    def rows(cls, batches: Sequence[pa.RecordBatch], columns: Sequence[YtColumn], **parameters: Any) -> Answer:
        """Answer rows: every batch has the columns, in their order."""
        return cls(batches=batches, columns=columns, parameters=parameters)

    @classmethod
    def raw(cls, content: bytes, **parameters: Any) -> Answer:
        """Answer bytes; of a tabular command, they are already in ``context.output_format``."""
        return cls(content=content, parameters=parameters)

    @classmethod
    def streamed(cls, pieces: Iterator[bytes], length: int, *, on_disk: bool = False, **parameters: Any) -> Answer:
        """Answer many bytes without holding them all; ``on_disk`` if it is a file of this answer that holds them."""
        return cls(stream=pieces, length=length, on_disk=on_disk, parameters=parameters)


@dataclass
class Context:
    """What a command may use besides its parameters and body.

    Attributes:
        cluster: what all requests share.
        user: whose token the request has.
        now: the time of the request, µs since 1970.
        input_format: how the rows or the value of the body are written.
        output_format: how the client wants the answer to be written.
        upload: the body of a command with binary input, unpacked, to be read from its beginning; its ``body`` is empty.
    """

    cluster: Cluster
    user: str
    now: int
    input_format: Format
    output_format: Format
    upload: BinaryIO | None = None

    @property
    def store(self) -> EmbeddedStore:
        """The embedded store that everything is kept in; each method is a transaction, or part of the command's."""
        return self.cluster.store

    @property
    def cypress(self) -> Cypress:
        """The tree of nodes."""
        return self.cluster.cypress

    @property
    def transactions(self) -> Transactions:
        """The master transactions."""
        return self.cluster.transactions

    def part(self, kind: Callable[[Cluster], Part]) -> Part:
        """Return the cluster's only object of a class, which is made with the cluster when it is first asked for.

        This is where commands keep what must outlive a request, such as open tablet transactions. Where two threads ask
        at once one of two objects is kept, so making one must do nothing that lasts.
        """
        return self.cluster.part(kind)


Run: TypeAlias = Callable[[Context, Parameters, bytes], Answer]


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: as in the path of a request.
        input: what the body is; None if the command has none.
        output: what the answer is; None if it has none.
        volatile: it changes something.
        heavy: clients ask for a proxy for it, and do not number it with a mutation id.
        atomic: it runs inside one write transaction of the store, which is undone if it fails; together with its
            mutation id, if it has one, so that a request that comes again is not done again.
    """

    name: str
    input: DataKind | None
    output: DataKind | None
    volatile: bool
    heavy: bool
    atomic: bool
    run: Run


COMMANDS: dict[str, Command] = {}
"""Name → command, filled by `command` as modules are imported (see `headrace.endpoints.ytsaurus.cluster`)."""


def command(
    *names: str,
    input: DataKind | None = None,
    output: DataKind | None = "structured",
    volatile: bool = False,
    heavy: bool = False,
    atomic: bool | None = None,
) -> Callable[[Run], Run]:
    """Register a function as a command, under one or several names; it is called in a thread of its own.

    Args:
        input, output, volatile, heavy: what clients are told of it; see `Command`.
        atomic: see `Command`; by default, what is volatile and not heavy is. The writer lock of the store is held
            meanwhile, so an atomic command must be quick, and must not wait for another thread that writes.
    """
    inside = volatile and not heavy if atomic is None else atomic

    def register(run: Run) -> Run:
        for name in names:
            if name in COMMANDS:
                raise AssertionError(f"two commands of one name: {name}")
            COMMANDS[name] = Command(name, input, output, volatile, heavy, inside, run)
        return run

    return register
