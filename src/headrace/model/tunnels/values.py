"""Values of tunnels: kinds, channels, positions, pages, and start positions. No I/O."""

from __future__ import annotations

import datetime
import enum
import warnings
from dataclasses import dataclass
from typing import Literal

from headrace.errors import OptionError
from headrace.model.tables.changes import Changes


class TunnelKind(enum.StrEnum):
    BASE_DATA = "BaseData"
    STREAM = "Stream"
    BASE_AND_STREAM = "BaseAndStream"

    @classmethod
    def parse(cls, text: str) -> TunnelKind:
        """Return the kind with a name, ignoring case."""
        for kind in cls:
            if kind.lower() == str(text).lower():
                return kind
        raise OptionError("unknown kind of tunnel", received=repr(text)[:200], valid=list(cls))


KindName = Literal["BaseData", "Stream", "BaseAndStream"]
"""The names of the kinds of tunnels."""


class ChannelKind(enum.StrEnum):
    BASE_DATA = "BaseData"
    STREAM = "Stream"


class ChannelState(enum.StrEnum):
    WAITING = "waiting"
    """A parent is not finished."""
    OPEN = "open"
    FINISHED = "finished"
    """Read to its end, and the end is committed."""


@dataclass(frozen=True)
class Position:
    """A position in a channel: a token of the store, which is opaque, and a number of rows to skip after it.

    ``skip`` allows a position inside a page.
    """

    token: str
    skip: int = 0


FINISHED = Position("finished")
"""The position after the last row of a channel without further rows."""


@dataclass(frozen=True)
class Channel:
    """One ordered part of a tunnel.

    Attributes:
        committed: the committed position; the rows before it are processed.
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
    """The unread rows of a channel after a position.

    Attributes:
        rows: the number of rows; None if the store does not know it, but it is more than 0.
        bytes: their estimated size in bytes; if ``rows`` is None, the size of ``at_least`` rows.
        seconds: the time since the commit of the oldest row; 0.0 without rows.
        ends: the channel has no rows after these.
        at_least: the minimum number of rows if ``rows`` is None.
        counted: the number of rows by the store's count, to show it if ``rows`` is None. No plan may rely on it.
        copied: the number of rows that the store copies at the first read of the channel, and keeps until its end is
            committed; 0 if it needs no copy. If ``rows`` is None, it is an estimate, and there is no copy yet.
        truncates: the tables with whose TRUNCATE the rows begin, as far as the store knows; "" if the tunnel has one.
    """

    rows: int | None
    bytes: int | None = None
    seconds: float | None = None
    ends: bool = False
    at_least: int = 0
    counted: int | None = None
    copied: int = 0
    truncates: tuple[str, ...] = ()

    @property
    def unopened(self) -> bool:
        """Whether the store copies the rows of the channel at its first read, and has not done so."""
        return self.copied > 0 and self.rows is None

    @property
    def known(self) -> int:
        """The number of rows, or the minimum if the number is unknown."""
        found = self.unread
        return self.at_least if found is None else found

    @property
    def unread(self) -> int | None:
        """The number of rows for people; None if it is unknown."""
        return self.counted if self.rows is None else self.rows

    @property
    def empty(self) -> bool:
        return self.rows == 0

    def after(self, rows: int | None) -> Backlog:
        """Return the backlog after a batch of at most this number of rows; None is no limit."""
        if rows is None:
            return Backlog(rows=0, ends=self.ends)
        counts = [None if count is None else max(0, count - rows) for count in (self.rows, self.counted)]
        return Backlog(counts[0], ends=self.ends, at_least=max(0, self.at_least - rows), counted=counts[1])


@dataclass(frozen=True)
class Page:
    """The result of one read of a channel: changes, and the position after them.

    Attributes:
        last: whether it is known that no change follows before the bound of the read. Without it, a further read shows.
    """

    changes: Changes
    next: Position
    last: bool = False


class StartKind(enum.StrEnum):
    COMMITTED = "committed"
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    BATCH = "batch"
    BEGINNING = "beginning"
    """The first rows of a tunnel that no query has read. Every store has them, also one that cannot rewind."""


@dataclass(frozen=True)
class Start:
    """The start position of a new query: the committed positions, the start or end of the tunnel, a time, or a batch.

    A batch is a record of another query, or of the EMR connector, in the meta table of the tunnel's store.
    """

    kind: StartKind = StartKind.COMMITTED
    timestamp: datetime.datetime | None = None
    batch: str | None = None

    @classmethod
    def parse(cls, text: str) -> Start:
        """Parse ``committed``, ``earliest``, ``latest``, ``batch:<uuid>`` or an ISO 8601 timestamp (default: UTC)."""
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
