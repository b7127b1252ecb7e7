"""Values of tunnels: their kinds and channels, positions, pages, and where a query starts. No I/O here."""

from __future__ import annotations

import datetime
import enum
import warnings
from dataclasses import dataclass

from headrace.errors import OptionError
from headrace.tables.changes import Changes


class TunnelKind(enum.StrEnum):
    BASE_DATA = "BaseData"
    STREAM = "Stream"
    BASE_AND_STREAM = "BaseAndStream"

    @classmethod
    def parse(cls, text: str) -> TunnelKind:
        """Return the kind of that name, in any case."""
        for kind in cls:
            if kind.lower() == str(text).lower():
                return kind
        raise OptionError("unknown kind of tunnel", received=repr(text)[:200], valid=list(cls))


class ChannelKind(enum.StrEnum):
    BASE_DATA = "BaseData"
    STREAM = "Stream"


class ChannelState(enum.StrEnum):
    WAITING = "waiting"
    """A parent is not yet finished and committed."""
    OPEN = "open"
    FINISHED = "finished"
    """Read to its end, and that end is committed."""


@dataclass(frozen=True)
class Position:
    """A place in a channel: the store's token, which only the store can read, and rows to skip after it.

    ``skip`` lets a reader stop inside a page, whatever size of page the store gives.
    """

    token: str
    skip: int = 0


FINISHED = Position("finished")
"""The position behind the last row of a channel that will never have more."""


@dataclass(frozen=True)
class Channel:
    """One ordered piece of a tunnel.

    Attributes:
        committed: the committed position: everything before it is processed.
        parents: the ids of channels of the same tunnel that must be finished before this one opens.
    """

    id: str
    kind: ChannelKind
    state: ChannelState
    committed: Position
    parents: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> Position:
        """The committed position; deprecated, use `committed`."""
        warnings.warn("Channel.checkpoint is deprecated, use Channel.committed", DeprecationWarning, stacklevel=2)
        return self.committed


@dataclass(frozen=True)
class Backlog:
    """What a channel has to give from a position on.

    Attributes:
        rows: rows that can be read now; None where the store cannot tell, which counts as some.
        bytes: their size in bytes, estimated; where ``rows`` is None, the size of ``at_least`` rows.
        seconds: age of the oldest of them, from its commit until now; 0.0 when there is none.
        ends: the channel will have nothing after them.
        at_least: so many rows have been seen, where the store cannot tell how many there are.
    """

    rows: int | None
    bytes: int | None = None
    seconds: float | None = None
    ends: bool = False
    at_least: int = 0

    @property
    def known(self) -> int:
        """The rows that are certain to be there."""
        return self.at_least if self.rows is None else self.rows

    @property
    def empty(self) -> bool:
        return self.rows == 0


@dataclass(frozen=True)
class Page:
    """What one read of a channel gives: changes, and the position behind them."""

    changes: Changes
    next: Position


class StartKind(enum.StrEnum):
    COMMITTED = "committed"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    BATCH = "batch"


@dataclass(frozen=True)
class Start:
    """Where a new query begins: the tunnel's committed positions, its beginning, now, an instant, or after a batch.

    A batch was recorded in the meta table of the tunnel's store by another query or by the EMR connector.
    """

    kind: StartKind = StartKind.COMMITTED
    timestamp: datetime.datetime | None = None
    batch: str | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read ``committed``, ``earliest``, ``latest``, ``batch:<uuid>`` or an ISO 8601 timestamp.

        A timestamp is in UTC unless it says otherwise.
        """
        text = str(text).strip()
        word = text.lower()
        if word in (StartKind.COMMITTED, StartKind.EARLIEST, StartKind.LATEST):
            return cls(StartKind(word))
        if word.startswith("batch:") and word != "batch:":
            return cls(StartKind.BATCH, batch=text[len("batch:") :])
        try:
            instant = datetime.datetime.fromisoformat(text)
        except ValueError:
            valid = "committed, earliest, latest or a timestamp such as 2026-01-31T12:00:00+00:00"
            raise OptionError("unknown start position", received=repr(text)[:200], valid=valid) from None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=datetime.UTC)
        return cls(StartKind.TIMESTAMP, instant)
