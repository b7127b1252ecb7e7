"""`TablestoreTunnel`: a tunnel of the service, as headrace's feeds and workers read it.

Tokens of the service identify pages and have no order. So a position is a token and a number of rows to skip after it.
A bound that is not the beginning of a page is a time (`pages.before`). The meta table has the records of batches. The
service saves one token for each channel, its checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from headrace.errors import DataLossError, NotFoundError, OptionError, UnsupportedError
from headrace.model.tunnels.validation import microseconds
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    Channel,
    ChannelKind,
    ChannelState,
    Page,
    Position,
    Start,
    StartKind,
    TunnelKind,
)
from headrace.ports import ChannelDescription, Table, Tunnel, TunnelClient, TunnelDescription
from headrace_tablestore.store.meta_table import MetaTable
from headrace_tablestore.store.tunnels.batches import TablestoreBatches
from headrace_tablestore.store.tunnels.clients import TablestoreTunnelClient
from headrace_tablestore.store.tunnels.pages import RecordPage, before, changes_of, time_of
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError

DEFAULT_CLIENT = "spark-client"
# The cache of pages that were examined, for reads of the same position in this process.
_KEPT_BYTES = 32 << 20
_CALLS_AT_ONCE = 8
# A part of the log may have no changes for a channel: most empty pages that one lookahead skips.
_EMPTY_PAGES = 8
Item = TypeVar("Item")
Result = TypeVar("Result")
_STATES = {"WAIT": ChannelState.WAITING, "TERMINATED": ChannelState.FINISHED}


class _Lookahead(NamedTuple):
    """The rows at a position: ``rows`` rows of the token's page, after the first ``place.skip``.

    ``cut`` is whether a bound ends them before the end of the page.
    """

    place: Position
    page: RecordPage
    rows: int
    cut: bool


class TablestoreTunnel(Tunnel):
    """A tunnel of a Tablestore instance.

    The service does not report some facts, so this class does not either: parents of channels (the service opens
    channels), whether a change found a row (see `pages`), and positions before the committed ones. Positions are
    committed without a connected client, like in the EMR connector. Whether they can move back is up to the service.

    Args:
        service: the calls of the tunnel service.
        meta: the meta table.
        table: the table, with the requested columns of its changes.
        info: the service's description of the tunnel.
        client: the client id of this reader's calls.
    """

    batches: TablestoreBatches

    def __init__(
        self, service: TunnelService, meta: MetaTable, table: Table, info: pb.TunnelInfo, client: str = DEFAULT_CLIENT
    ) -> None:
        self._service = service
        self.batches = TablestoreBatches(meta, info.tunnel_id)
        self._client = client
        self._pages: OrderedDict[tuple[str, str], RecordPage] = OrderedDict()
        self._lock = threading.Lock()
        self._ahead = ThreadPoolExecutor(1, "headrace-tunnel")
        self._coming: dict[tuple[str, str], Future[RecordPage]] = {}
        self._newest = 0
        self._resolved: dict[tuple[str, str], Position] = {}
        self._committed: dict[str, Position] = {}
        # For each channel, two positions without changes between them.
        self._passed: dict[str, tuple[Position, Position]] = {}
        self.table = table
        self.id = info.tunnel_id
        self.name = info.tunnel_name
        self.kind = TunnelKind(info.tunnel_type)
        self.created = info.create_time / 1e9

    def __repr__(self) -> str:
        return f"TablestoreTunnel({self.name!r} of table {self.table.name!r}, {self.kind}, id {self.id})"

    def describe(self) -> TunnelDescription:
        answer = self._described()
        holders = {info.channel_id: info.client_id or None for info in answer.channels}
        channels = self._channels(answer.channels, {})
        backlogs = self.backlogs({each.id: each.committed for each in channels if each.state is ChannelState.OPEN})
        finished, unknown = Backlog(rows=0, bytes=0, seconds=0.0, ends=True), Backlog(rows=None)
        for channel in channels:
            if channel.state is not ChannelState.OPEN:
                backlogs[channel.id] = finished if channel.state is ChannelState.FINISHED else unknown
        reading_base = self.kind is TunnelKind.BASE_DATA or answer.tunnel.stage != "ProcessStream"
        return TunnelDescription(
            id=self.id,
            name=self.name,
            table=self.table.name,
            kind=self.kind,
            stage=str(ChannelKind.BASE_DATA if reading_base else ChannelKind.STREAM),
            created=self.created,
            channels=tuple(
                ChannelDescription(channel, backlogs[channel.id], holders[channel.id]) for channel in channels
            ),
        )

    # -- channels -----------------------------------------------------------------------------------

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        return self._channels(self._described().channels, known or {})

    def _described(self) -> pb.DescribeTunnelResponse:
        answer = self._service.describe(self.table.name, self.name)
        if answer.tunnel.tunnel_id != self.id:
            raise NotFoundError(
                "the tunnel was dropped, and another one was created with its name",
                received=f"{self.name!r} ({self.id})",
                valid=answer.tunnel.tunnel_id,
            )
        return answer

    def _channels(self, infos: Iterable[pb.ChannelInfo], known: Mapping[str, Position]) -> list[Channel]:
        states = {info.channel_id: _STATES.get(info.channel_status, ChannelState.OPEN) for info in infos}
        asked = [id for id, state in states.items() if state is not ChannelState.FINISHED and id not in known]
        saved = self._committed_positions(asked)
        channels = []
        for info in infos:
            state = states[info.channel_id]
            # The description may be older than the save that finished the channel.
            if state is ChannelState.FINISHED or saved.get(info.channel_id) == FINISHED:
                state, committed = ChannelState.FINISHED, FINISHED
            else:
                committed = saved[info.channel_id] if info.channel_id in saved else known[info.channel_id]
            channels.append(Channel(info.channel_id, ChannelKind(info.channel_type), state, committed))
        return channels

    def _committed_positions(self, channels: Sequence[str]) -> dict[str, Position]:
        """Return the committed positions of channels, with one call for each."""
        if not channels:
            return {}
        tokens = self._each(lambda channel: self._service.get_checkpoint(self.id, self._client, channel)[0], channels)
        inside = self.batches.committed()
        positions = {}
        for channel, token in zip(channels, tokens, strict=True):
            local = inside.get(channel)
            positions[channel] = local if local is not None and local.token == token else Position(token)
        return positions

    def start_positions(self, start: Start) -> dict[str, Position]:
        """Return the first positions of a new reader; none is before the committed position.

        For ``latest`` and for a time, open channels are read up to that time: the service cannot find a token by time.
        """
        if start.kind is StartKind.COMMITTED:
            raise OptionError(
                "a query that begins at the committed positions needs no start positions", received="committed"
            )
        if start.kind in (StartKind.EARLIEST, StartKind.BEGINNING):
            raise UnsupportedError(
                "Tablestore gives no positions before the committed positions of a tunnel",
                received=f"startingPosition {start.kind}",
                valid="committed, latest, batch:<uuid> or a timestamp",
                remedy="create another tunnel for the query, with start='earliest' or with kind='BaseAndStream'",
            )
        if start.kind is StartKind.BATCH:
            return self._left_positions(start.batch or "")
        place = self._present() if start.timestamp is None else before(microseconds(start.timestamp) - 1)
        positions = {}
        for info in self._described().channels:
            if info.channel_type == ChannelKind.BASE_DATA or info.channel_status == "TERMINATED":
                positions[info.channel_id] = FINISHED
            else:
                waits = info.channel_status == "WAIT"
                positions[info.channel_id] = place if waits else self._resolve(info.channel_id, place)
        return positions

    def _left_positions(self, batch: str) -> dict[str, Position]:
        """Return the end positions of a batch, and the committed positions of the channels that it did not read."""
        left = self.batches.left_positions(batch)
        if not left:
            raise NotFoundError(
                "the meta table has no positions of this batch",
                received=f"startingPosition batch:{batch}",
                remedy="name the connector's table in option checkpoint.table; its rows expire after 7 days, and then "
                "the query can only begin at the tunnel's committed positions (committed)",
            )
        channels = self.channels()
        return {
            each.id: FINISHED if each.state is ChannelState.FINISHED else left.get(each.id, each.committed)
            for each in channels
        }

    def latest_positions(self) -> dict[str, Position]:
        """Return the current time as a position for channels that may have more changes."""
        now = self._present()
        return {
            info.channel_id: FINISHED
            if info.channel_type == ChannelKind.BASE_DATA or info.channel_status == "TERMINATED"
            else now
            for info in self._described().channels
        }

    def _present(self) -> Position:
        # The clock of the service may be ahead.
        return before(max(_now(), self._newest))

    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        """Return the backlog from one page. After a full page the number of rows is unknown."""
        if position == FINISHED:
            return Backlog(rows=0, bytes=0, seconds=0.0, ends=True)
        place, page, count, cut = self._look(channel, position, until, counting=True)
        if count == 0:
            return Backlog(rows=0, bytes=0, seconds=0.0, ends=not cut and place == FINISHED)
        size = sum(map(len, page.records[place.skip : place.skip + count]))
        seconds = None if page.base else max(0.0, (_now() - page.time(place.skip)) / 1e6)
        more = page.more and not cut
        return Backlog(
            rows=None if more else count,
            bytes=size,
            seconds=seconds,
            ends=not cut and (page.base or page.end == FINISHED),
            at_least=count,
        )

    def backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        bounds = until or {}
        backlogs = self._each(lambda at: self.backlog(at[0], at[1], bounds.get(at[0])), list(positions.items()))
        return dict(zip(positions, backlogs, strict=True))

    def read(
        self,
        channel: str,
        position: Position,
        max_rows: int,
        until: Position | None = None,
        *,
        total: int | None = None,
    ) -> Page:
        """Read the page at a position; the service chooses its length."""
        schema = self.table.schema
        if position == FINISHED:
            return Page(changes_of([], schema, base=False), FINISHED)
        place, page, count, cut = self._look(channel, position, until)
        if count and not cut and page.more and count < max_rows:
            self._fetch_ahead(channel, page)
        changes = page.changes(schema).slice(place.skip if count else 0, count)
        if count == 0:
            return Page(changes, place)
        return Page(changes, Position(place.token, place.skip + count) if cut else page.end)

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        """Return the committed position of the channel, if it can be read. Base data that was read is not lost.

        Raises:
            DataLossError: the committed position cannot be read either, and the service has no other position.
        """
        if position == FINISHED or self._channel(channel).channel_status == "TERMINATED":
            return FINISHED, 0
        try:
            self._look(channel, position, None)
        except DataLossError as error:
            lost = error
        else:
            return position, 0
        (committed,) = self._committed_positions([channel]).values()
        if committed != FINISHED and committed.token != position.token:
            self._look(channel, committed, None)
            return committed, None
        raise DataLossError(
            f"{lost.problem}, and Tablestore has no position after the lost changes",
            received=f"tunnel {self.name!r}, channel {channel}",
            remedy="create a new tunnel; one of kind BaseAndStream begins with the rows that the table has",
        ) from lost

    def advance(self, channel: str, position: Position, rows: int) -> Position:
        return position if position == FINISHED else Position(position.token, position.skip + rows)

    def commit(self, positions: Mapping[str, Position]) -> None:
        """Commit positions. The meta table has positions inside a page, with the beginning of the page."""
        inside: dict[str, Position] = {}
        for channel, position in positions.items():
            place = self._resolve(channel, position)
            if self._committed.get(channel) == place:
                continue
            self._call(channel, self._save, place.token)
            if place == FINISHED:
                self._forget_pages(channel)
            if place.skip and self._is_further(channel, place):
                inside[channel] = place
            self._committed[channel] = place
        if inside:
            self.batches.save_committed(inside)

    def _save(self, channel: str, token: str) -> None:
        self._service.checkpoint(self.id, self._client, channel, token, 0)

    def _is_further(self, channel: str, place: Position) -> bool:
        """Return whether a position is after the committed position in the same page."""
        (now,) = self._committed_positions([channel]).values()
        return now.token == place.token and now.skip < place.skip

    # -- clients that share the channels --------------------------------------------------------------

    def connect(self, *, tag: str = "", timeout: float = 300.0) -> TunnelClient:
        client = self._service.connect(self.id, tag=tag, timeout=timeout)
        return TablestoreTunnelClient(self._service, self.batches, self.id, client, timeout)

    def client(self, client_id: str) -> TunnelClient:
        """Return a client by its id. The service reports a removed client only when the client is used."""
        return TablestoreTunnelClient(self._service, self.batches, self.id, client_id, 300.0)

    # -- places and pages -------------------------------------------------------------------------------

    def _look(self, channel: str, position: Position, until: Position | None, *, counting: bool = False) -> _Lookahead:
        """Return the first rows at a position, up to a bound.

        Args:
            counting: read the current number of rows; otherwise a cached page is enough.
        """
        place = begin = self._resolve(channel, position)
        passed = self._passed.get(channel)
        if passed is not None and passed[0] == begin:
            place = passed[1]
        page = self._page(channel, place.token, counting=counting)
        empty = 0
        while place.skip >= len(page.records) and page.end != place:
            if page.end == FINISHED:
                return _Lookahead(FINISHED, page, 0, cut=False)
            if not page.records and not page.more:
                # The service reports no more changes. With another next token, more may follow.
                if empty == _EMPTY_PAGES or page.next == place.token:
                    break
                empty += 1
            place = Position(page.next, place.skip - len(page.records))
            page = self._page(channel, place.token, counting=counting)
        if empty and begin.skip == 0:
            self._passed[channel] = begin, place
        rows = max(0, len(page.records) - place.skip)
        count = min(rows, self._rows_until(channel, place, page, until)) if rows else 0
        return _Lookahead(place, page, count, cut=count < rows)

    def _rows_until(self, channel: str, place: Position, page: RecordPage, until: Position | None) -> int:
        """Return the number of rows of a page between a position and a bound, or more if all are before it."""
        everything = len(page.records)
        if until is None or until == FINISHED:
            return everything
        timestamp = time_of(until)
        if timestamp is not None:
            return max(0, page.count_up_to(timestamp) - place.skip)
        if until.token == place.token:
            return max(0, until.skip - place.skip)
        if until.token == page.next:
            return everything
        # Tokens have no order, but records do not change: the bound is at its first record.
        bound, other, count, _ = self._look(channel, until, None)
        if count == 0:
            return everything
        try:
            return page.records.index(other.records[bound.skip], place.skip) - place.skip
        except ValueError:
            return everything

    def _resolve(self, channel: str, position: Position) -> Position:
        """Return a position as a token and rows to skip, also for a position that is a time."""
        timestamp = time_of(position)
        if timestamp is None:
            return position
        place = self._resolved.get((channel, position.token))
        if place is None:
            (place,) = self._call(channel, lambda channel, _: self._committed_positions([channel]), "").values()
        while place != FINISHED:
            place, page, count, _ = self._look(channel, place, None)
            before_it = min(count, self._rows_until(channel, place, page, position)) if count else 0
            place = page.end if count and before_it == count else Position(place.token, place.skip + before_it)
            if place == FINISHED or before_it == 0 or before_it < count:
                break
        self._resolved[channel, position.token] = place
        return place if place == FINISHED else Position(place.token, place.skip + position.skip)

    def _page(self, channel: str, token: str, *, counting: bool) -> RecordPage:
        """Return the page at a token, from the cache if the cached page is still current."""
        with self._lock:
            page = self._pages.get((channel, token))
            coming = self._coming.pop((channel, token), None)
        if coming is not None:
            page = coming.result()
        if page is not None and page.records and (page.more or page.end == FINISHED or not counting):
            return page
        return self._fetch(channel, token)

    def _fetch_ahead(self, channel: str, page: RecordPage) -> None:
        """Request the page after another one in the background."""
        key = channel, page.next
        with self._lock:
            # Arrived pages go to the cache.
            self._coming = {token: coming for token, coming in self._coming.items() if not coming.done()}
            if key not in self._pages and not self._coming:
                self._coming[key] = self._ahead.submit(self._fetch, *key)

    def _fetch(self, channel: str, token: str) -> RecordPage:
        page = RecordPage.of(token, self._call(channel, self._read_records, token))
        newest = page.time(-1) if page.records and not page.base else 0
        with self._lock:
            self._newest = max(self._newest, newest)
            self._pages[channel, token] = page
            self._pages.move_to_end((channel, token))
            while len(self._pages) > 1 and sum(page.size for page in self._pages.values()) > _KEPT_BYTES:
                self._pages.popitem(last=False)
        return page

    def _forget_pages(self, channel: str) -> None:
        with self._lock:
            for key in [key for key in self._pages if key[0] == channel]:
                del self._pages[key]

    def _read_records(self, channel: str, token: str) -> pb.ReadRecordsPage:
        return self._service.read_records(self.id, self._client, channel, token)

    def _call(self, channel: str, call: Callable[[str, str], Result], token: str) -> Result:
        """Return the result of a call for a channel; if it fails, raise an error that names the missing object."""
        try:
            return call(channel, token)
        except (ServiceError, NotFoundError):
            self._channel(channel)
            raise

    def _channel(self, channel: str) -> pb.ChannelInfo:
        """Return the current description of a channel.

        Raises:
            NotFoundError: the tunnel was dropped, or does not have this channel.
        """
        infos = {info.channel_id: info for info in self._described().channels}
        if channel not in infos:
            raise NotFoundError(f"tunnel {self.name!r} has no such channel", received=repr(channel), valid=list(infos))
        return infos[channel]

    def _each(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return the results of a call for each item; several calls run concurrently."""
        if len(items) < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(min(_CALLS_AT_ONCE, len(items)), "headrace-tunnel") as pool:
            return list(pool.map(call, items))


def _now() -> int:
    """Return this machine's time in µs since 1970."""
    return time.time_ns() // 1000
