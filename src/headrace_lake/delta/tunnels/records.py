"""What tunnels of Delta tables keep in tables of the home: the tunnels, their progress, and the records of batches.

Each record is a row with JSON. It is created if it is absent, or replaced if it is as it was read: so the processes of
all readers see one order of events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from headrace.errors import AlreadyExistsError, ClaimLostError, NotFoundError
from headrace.model.own_names import PREFIX
from headrace.model.tunnels.records import (
    INITIAL_BATCH,
    BatchPlace,
    BatchPlan,
    ChannelEnd,
    end_from_json,
    end_to_json,
    plan_from_json,
    plan_to_json,
    reader_replaced,
)
from headrace.model.tunnels.values import Position, TunnelKind
from headrace.ports import BatchRecords
from headrace_lake.home import Home, HomeTable

TUNNELS = HomeTable(f"{PREFIX}lake_tunnels", ("table", "name"))
PROGRESS = HomeTable(f"{PREFIX}lake_progress", ("tunnel",))
BATCHES = HomeTable(f"{PREFIX}lake_batches", ("tunnel", "batch", "channel"))
CLIENTS = "clients"
"""The reader of a tunnel that clients share. A query is the id of its first batch."""
# The channel of a row with a plan: ids of channels are not empty.
_PLAN = ""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StoredTunnel:
    """A tunnel, which never changes.

    Attributes:
        table: the name of its table.
        identity: the identity of the table.
        start: the version after which its stream begins; the base data is that of this version.
        time: the time of this version, in microseconds since 1970.
        base_channels: the number of channels of base data.
        base_rows: the number of rows of base data.
        created: in seconds since 1970.
        position: the token of the position at which its stream begins.
    """

    id: str
    name: str
    table: str
    identity: str
    kind: TunnelKind
    start: int
    time: int
    base_channels: int
    base_rows: int
    created: float
    position: str = ""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StoredTunnel:
        """Return the tunnel of a row."""
        content = json.loads(row["content"])
        return cls(**{**content, "kind": TunnelKind(content["kind"])})


@dataclass
class Progress:
    """The state of a tunnel.

    Attributes:
        reader: the first batch of the query that reads the tunnel, or `CLIENTS`; empty at first.
        committed: the committed positions, by channel; without those of the start.
        sequences: the numbers of the last saves of clients, by channel.
        clients: tag, timeout, and times of the connection and of the last heartbeat, by client.
        leases: status, version, client and time of the last change, by channel.
    """

    reader: str = ""
    committed: dict[str, tuple[str, int]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    clients: dict[str, tuple[str, float, float, float | None]] = field(default_factory=dict)
    leases: dict[str, tuple[str, int, str | None, float]] = field(default_factory=dict)

    def position(self, channel: str, start: Position) -> Position:
        """Return the committed position of a channel."""
        found = self.committed.get(channel)
        return start if found is None else Position(*found)


def stored_tunnels(home: Home, table: str | None = None) -> list[StoredTunnel]:
    """Return the tunnels of a table, or all."""
    return [StoredTunnel.of(row) for row in home.rows(TUNNELS, None if table is None else {"table": table})]


def create(home: Home, tunnel: StoredTunnel) -> None:
    """Save a new tunnel.

    Raises:
        AlreadyExistsError: the table has a tunnel of the name.
    """
    home.replace(PROGRESS, None, _progress_row(tunnel.id, Progress()))
    content = json.dumps(asdict(tunnel))
    try:
        home.replace(TUNNELS, None, {"table": tunnel.table, "name": tunnel.name, "content": content})
    except ClaimLostError:
        home.table(PROGRESS).delete({"tunnel": tunnel.id})
        raise AlreadyExistsError(
            f"table {tunnel.table!r} has a tunnel of this name", received=repr(tunnel.name), remedy="use another name"
        ) from None


def drop(home: Home, tunnel: StoredTunnel) -> None:
    """Remove a tunnel and its records."""
    home.table(TUNNELS).delete({"table": tunnel.table, "name": tunnel.name})
    home.table(PROGRESS).delete({"tunnel": tunnel.id})
    home.table(BATCHES).delete(_keys(home.rows(BATCHES, {"tunnel": tunnel.id})))


class TunnelRecords:
    """The records of one tunnel."""

    def __init__(self, home: Home, tunnel: str) -> None:
        self.home = home
        self.tunnel = tunnel

    def progress(self) -> Progress:
        """Return the state of the tunnel.

        Raises:
            NotFoundError: the tunnel was dropped.
        """
        return self._progress()[0]

    def _progress(self) -> tuple[Progress, dict[str, str]]:
        rows = self.home.rows(PROGRESS, {"tunnel": self.tunnel})
        if not rows:
            raise NotFoundError("the tunnel was dropped", received=self.tunnel, remedy="create a new tunnel")
        return Progress(**json.loads(rows[0]["content"])), rows[0]

    def change(self, work: Callable[[Progress], _Result]) -> _Result:
        """Change the state of the tunnel, and return the result of the function.

        Raises:
            NotFoundError: the tunnel was dropped.
        """
        while True:
            progress, row = self._progress()
            result = work(progress)
            after = _progress_row(self.tunnel, progress)
            if after == row:
                return result
            try:
                self.home.replace(PROGRESS, row, after)
            except ClaimLostError:
                continue
            return result


class TunnelBatches(BatchRecords):
    """The recorded batches of a tunnel."""

    def __init__(self, records: TunnelRecords) -> None:
        self._records = records
        self._home = records.home
        self._tunnel = records.tunnel

    def save_plan(self, plan: BatchPlan) -> None:
        place = BatchPlace.of(plan, self._place(plan.previous))

        def begin(progress: Progress) -> None:
            if plan.previous == INITIAL_BATCH:
                progress.reader = place.root

        self._records.change(begin)
        self._create(plan.batch, _PLAN, {"root": place.root, "depth": place.depth, "plan": plan_to_json(plan)})

    def check_reader(self, batch: str) -> None:
        place = self._place(batch)
        if place is not None and self._records.progress().reader != place.root:
            raise reader_replaced(self._tunnel)

    def load_plan(self, batch: str) -> BatchPlan | None:
        content = self._content(batch, _PLAN)
        return None if content is None else plan_from_json(content["plan"])

    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        self._records.progress()
        return end_from_json(self._create(batch, channel, {"end": end_to_json(end)})["end"])

    def end(self, batch: str, channel: str) -> ChannelEnd | None:
        content = self._content(batch, channel)
        return None if content is None else end_from_json(content["end"])

    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        rows = self._home.rows(BATCHES, {"tunnel": self._tunnel, "batch": batch})
        return {
            row["channel"]: end_from_json(json.loads(row["content"])["end"]) for row in rows if row["channel"] != _PLAN
        }

    def prune(self, batch: str, keep: int) -> None:
        place = self._place(batch)
        rows = self._home.rows(BATCHES, {"tunnel": self._tunnel})
        places = {row["batch"]: _place(json.loads(row["content"])) for row in rows if row["channel"] == _PLAN}
        old = {
            other
            for other, found in places.items()
            if place is not None and other != batch and found.root == place.root and place.outdates(found, keep)
        }
        if old:
            self._home.table(BATCHES).delete(_keys([row for row in rows if row["batch"] in old]))

    def _place(self, batch: str) -> BatchPlace | None:
        content = self._content(batch, _PLAN)
        return None if content is None else _place(content)

    def _content(self, batch: str, channel: str) -> dict[str, Any] | None:
        rows = self._home.rows(BATCHES, {"tunnel": self._tunnel, "batch": batch, "channel": channel})
        content: dict[str, Any] | None = json.loads(rows[0]["content"]) if rows else None
        return content

    def _create(self, batch: str, channel: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Save a record, unless there is one; return the saved one."""
        row = {"tunnel": self._tunnel, "batch": batch, "channel": channel, "content": json.dumps(content)}
        try:
            self._home.replace(BATCHES, None, row)
        except ClaimLostError:
            saved = self._content(batch, channel)
            if saved is None:
                raise NotFoundError("the record of a batch was removed while it was read", received=batch) from None
            return saved
        return content


def _place(content: Mapping[str, Any]) -> BatchPlace:
    return BatchPlace(content["root"], content["depth"])


def _progress_row(tunnel: str, progress: Progress) -> dict[str, str]:
    return {"tunnel": tunnel, "content": json.dumps(asdict(progress))}


def _keys(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in BATCHES.key} for row in rows]
