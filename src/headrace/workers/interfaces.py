"""The methods of a tunnel and its clients that a worker calls. `headrace.ports` has the complete interfaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.leases import Lease, Saved
from headrace.model.tunnels.values import Channel, Page, Position


class ConsumedTable(Protocol):
    """The table of a tunnel; see `headrace.ports.Table`."""

    @property
    def schema(self) -> TableSchema: ...


class WorkerClient(Protocol):
    """A client of a tunnel; see `headrace.ports.TunnelClient`."""

    id: str

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]: ...

    def saved(self, channel: str) -> Saved: ...

    def save(self, channel: str, position: Position, sequence: int) -> None: ...

    def close(self) -> None: ...


class ConsumedTunnel(Protocol):
    """A tunnel that workers read; see `headrace.ports.Tunnel`."""

    name: str

    @property
    def table(self) -> ConsumedTable: ...

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]: ...

    def read(self, channel: str, position: Position, max_rows: int, until: Position | None = None) -> Page: ...

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]: ...

    def accept_lost(self, channel: str, position: Position) -> bool: ...

    def advance(self, channel: str, position: Position, rows: int) -> Position: ...

    def connect(self, *, tag: str = "", timeout: float = 300.0) -> WorkerClient: ...

    def wait_for_change(self, timeout: float) -> bool: ...
