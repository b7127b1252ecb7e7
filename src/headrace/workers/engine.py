"""The threads of a worker: the keeper, the readers, and the consumer's thread.

The *keeper* sends heartbeats and saves positions; no other thread uses the tunnel's client. *Readers* prefetch pages of
channels that are due. A *consumer* is a thread of the caller, which receives one page at a time. Several of them have
pages of different channels. One condition guards all state, and no thread calls the store while it holds the condition.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, TypeAlias

from headrace.errors import (
    ClientGoneError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    SequenceNumberError,
    StoreError,
)
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.losses import read_on
from headrace.model.tunnels.values import FINISHED, ChannelState, Page, Position
from headrace.support.retries import jitter
from headrace.workers.interfaces import ConsumedTunnel, WorkerClient
from headrace.workers.leased_channel import FIRST_PAUSE, LONGEST_PAUSE, LeasedChannel

_READERS = 4
# Base data can have thousands of channels, whose pages would not all fit into memory.
_READY_PAGES = 8
# A page with this number of rows counts as full, even if more were requested, because services limit their pages.
_FULL_PAGE_ROWS = 500
_WATCH_SECONDS = 0.2
_LOOK_SECONDS = 0.1
_JOIN_SECONDS = 5.0
# Longer than a slow save, and much shorter than the retries of an unreachable store.
_LAST_SAVE_SECONDS = 20.0
_log = logging.getLogger("headrace")

Resume: TypeAlias = Callable[[str, Saved], Position]
"""Returns the position from which a channel is read, from its id and what the tunnel has saved."""


class Pace(NamedTuple):
    """The intervals of saves and heartbeats, and the timeout without heartbeats, in seconds."""

    checkpoint_interval: float
    heartbeat_interval: float
    timeout: float


class Delivery(NamedTuple):
    """A page that a consumer has in hand, its channel, and the position before it."""

    channel: LeasedChannel
    page: Page
    start: Position


class Engine:
    """Reads the channels of a tunnel that are leased to this worker.

    Args:
        tag: the name of the worker.
        batch_rows: the maximum number of rows in a page.
        fail_on_data_loss: end with a `DataLossError` if changes were lost; otherwise skip and log them.
        resume: the consumer keeps the positions itself. Then they move only with rows, or with a page without rows at
            the end of a channel: so the tunnel never has a later position than the consumer.
    """

    def __init__(
        self,
        tunnel: ConsumedTunnel,
        tag: str,
        batch_rows: int,
        pace: Pace,
        *,
        fail_on_data_loss: bool,
        resume: Resume | None = None,
    ) -> None:
        self._tunnel = tunnel
        self._tag = tag
        self._batch_rows = batch_rows
        self._pace = pace
        self._fail_on_data_loss = fail_on_data_loss
        self._resume = resume
        self._changed = threading.Condition()
        self._client: WorkerClient | None = None
        # The process that reads. A forked child has none of its threads, and may have inherited locks that they held.
        self._process: int | None = None
        self._threads: list[threading.Thread] = []
        self._leased: dict[str, LeasedChannel] = {}
        self._ready: deque[LeasedChannel] = deque()
        self._watching = self._hurry = self._stopping = self._leaving = False
        self._failure: BaseException | None = None
        self._next_save = self._next_beat = self._not_before = self._pause = 0.0
        # Until this time no other client can have this worker's channels.
        self._safe_until = 0.0
        # Whether `_leased` has the channels of a heartbeat of this client.
        self._joined = False

    def start(self) -> None:
        """Connect to the tunnel and start the threads. Has no effect after `leave`."""
        if self._leaving:
            return
        self._client = self._tunnel.connect(tag=self._tag, timeout=self._pace.timeout)
        self._next_save = time.monotonic() + self._pace.checkpoint_interval
        keeper = threading.Thread(target=self._keep, name="headrace-keeper", daemon=True)
        readers = [threading.Thread(target=self._read, name="headrace-reader", daemon=True) for _ in range(_READERS)]
        self._threads = [keeper, *readers]
        # The interpreter stops daemon threads at its exit, after the functions of atexit.
        atexit.register(self.close)
        self._process = os.getpid()
        for thread in self._threads:
            thread.start()

    # -- the consumer's side ---------------------------------------------------------------------------

    def take(self, *, stop_at_the_end: bool) -> Delivery | None:
        """Return the next page of a channel that has none in hand; None after the last.

        Raises the error that ended one of the threads.

        Args:
            stop_at_the_end: return None when the whole tunnel is read and saved, instead of waiting for changes.
        """
        if self._is_inherited:
            raise StoreError(
                "a tunnel worker reads in the process that started it, and this one is a fork of that process",
                received=f"process {os.getpid()}",
                remedy="call tunnel.consume() in this process",
            )
        while True:
            with self._changed:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._stopping or self._leaving:
                    return None
                delivery = self._next_delivery()
                if delivery is not None:
                    return delivery
                at_the_end = stop_at_the_end and self._is_caught_up()
                at_rest = all(leased.at_rest for leased in self._leased.values())
                if at_the_end and not at_rest:
                    self._ask_keeper()
                if not (at_the_end and at_rest):
                    self._changed.wait(_LOOK_SECONDS if stop_at_the_end else None)
                    continue
                ended = {leased.id for leased in self._leased.values() if leased.has_ended}
            if self._all_is_read(ended):
                return None
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._leaving or self._stopping, _LOOK_SECONDS)

    def done(self, delivery: Delivery) -> None:
        """Count a page as processed, unless it was counted before or is no longer the page in hand."""
        if self._is_inherited:
            return
        with self._changed:
            if delivery.channel.in_hand is not delivery.page.next:
                return
            delivery.channel.done()
            if delivery.channel.has_news:
                self._ask_keeper()
            elif delivery.channel.pages:
                # Another consumer can have the next page.
                self._changed.notify_all()

    def read_again(self, delivery: Delivery) -> None:
        """Forget the channel of a page. The next heartbeat shows whether this worker has it, and from where it is read.

        A channel that this worker has lost and got again meanwhile stays: another consumer can have its page.
        """
        with self._changed:
            if self._is_current(delivery.channel):
                del self._leased[delivery.channel.id]
                self._joined = False
                self._ask_keeper()

    def stop(self) -> None:
        """Make `take` return None from now on."""
        if self._is_inherited:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def _is_inherited(self) -> bool:
        return self._process not in (None, os.getpid())

    def leave(self) -> None:
        """Tell all threads to end. The keeper saves positions and releases the channels before it ends."""
        if self._is_inherited:
            return
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def close(self) -> None:
        """Leave, and wait until positions are saved and the channels are released.

        The wait for an unreachable store is limited. After that, unsaved changes are delivered again, and other workers
        get the channels after the timeout. Has no effect in a forked child.
        """
        if self._is_inherited:
            return
        self.leave()
        for number, thread in enumerate(self._threads):
            if thread is not threading.current_thread():
                # A reader that waits for a response has no position to save, so its wait is short.
                thread.join(_LAST_SAVE_SECONDS if number == 0 else _JOIN_SECONDS)
                if number == 0 and thread.is_alive():
                    _log.warning("tunnel %s does not respond; its last progress may not be saved", self._tunnel.name)

    def _next_delivery(self) -> Delivery | None:
        # After a timeout without heartbeats other workers may have the channels. Deliver nothing until the next one.
        while time.monotonic() < self._safe_until and (leased := next(filter(self._may_go, self._ready), None)):
            self._ready.remove(leased)
            # The queue of prefetched pages has room again.
            self._changed.notify_all()
            if leased.pages and self._is_current(leased):
                return Delivery(leased, leased.deliver(), leased.processed)
        return None

    def _may_go(self, leased: LeasedChannel) -> bool:
        """Return whether a channel can leave the queue of prefetched pages: it has no page in hand, or no lease."""
        return leased.in_hand is None or not self._is_current(leased)

    def _is_current(self, leased: LeasedChannel) -> bool:
        return self._leased.get(leased.id) is leased

    def _is_caught_up(self) -> bool:
        """Return whether a look at the whole tunnel is worth its time.

        It reads at the saved positions, which moves a reader of the same log out of its place.
        """
        return self._joined and all(leased.caught_up for leased in self._leased.values())

    def _all_is_read(self, ended: Collection[str]) -> bool:
        """Return whether the whole tunnel is read and saved, by this worker or others.

        Args:
            ended: channels of this worker that have no more rows.
        """
        try:
            unfinished = [each for each in self._tunnel.channels() if each.state is not ChannelState.FINISHED]
            return not any(
                channel.state is ChannelState.WAITING
                or (channel.id not in ended and self._has_more(channel.id, channel.committed))
                for channel in unfinished
            )
        except HeadraceError as error:
            # Another worker has just finished the channel, or changes were lost; its worker raises that error.
            if error.retryable or isinstance(error, DataLossError | NotFoundError):
                return False
            raise

    def _has_more(self, channel: str, position: Position) -> bool:
        page = self._tunnel.read(channel, position, 1)
        return page.changes.num_rows > 0 or page.next == FINISHED

    # -- readers -----------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while (leased := self._next_to_read()) is not None:
                start = leased.read
                try:
                    begin, page = self._read_page(leased.id, start)
                    pages = list(_cut(self._tunnel, leased.id, begin, page, self._batch_rows))
                except DataLossError as error:
                    self._take_error(leased, error.with_option("fail_on_data_loss=False"))
                except HeadraceError as error:
                    self._take_error(leased, error)
                else:
                    end = page.next
                    if self._resume is not None and not pages:
                        pages, end = ([page], end) if end == FINISHED else ([], start)
                    self._take_pages(leased, start, pages, end)
        except Exception as error:
            self._fail(error)

    def _read_page(self, channel: str, start: Position) -> tuple[Position, Page]:
        def read(position: Position) -> Page:
            return self._tunnel.read(channel, position, self._batch_rows)

        return (start, read(start)) if self._fail_on_data_loss else read_on(self._tunnel, channel, start, read)

    def _take_error(self, leased: LeasedChannel, error: HeadraceError) -> None:
        if error.retryable:
            _log.warning("channel %s of tunnel %s is read again: %s", leased.id, self._tunnel.name, error)
        with self._changed:
            leased.failed(error, time.monotonic())
            if leased.error is not None:
                # The channel may have moved to another worker or be finished. The next heartbeat shows it.
                self._ask_keeper()

    def _take_pages(self, leased: LeasedChannel, start: Position, pages: list[Page], end: Position) -> None:
        full = min(self._batch_rows, _FULL_PAGE_ROWS)
        with self._changed:
            if leased.arrived(start, pages, end, time.monotonic(), full):
                self._ready.extend([leased] * len(pages))
            if leased.has_news:
                self._ask_keeper()
            self._changed.notify_all()

    def _next_to_read(self) -> LeasedChannel | None:
        """Wait for a channel that is due, and return it; None when the worker leaves."""
        while True:
            with self._changed:
                if self._leaving:
                    return None
                has_room = len(self._ready) < _READY_PAGES
                leased = min(
                    (leased for leased in self._leased.values() if has_room and leased.may_be_read),
                    key=lambda leased: leased.due,
                    default=None,
                )
                pause = None if leased is None else leased.due - time.monotonic()
                if leased is not None and pause is not None and pause <= 0:
                    leased.begin_read()
                    return leased
                if pause is None or self._watching:
                    self._changed.wait(pause)
                    continue
                self._watching = True
            changed = self._tunnel.wait_for_change(min(pause, _WATCH_SECONDS))
            with self._changed:
                self._watching = False
                if changed:
                    for leased in self._leased.values():
                        leased.may_have_more()
                self._changed.notify_all()

    # -- the keeper --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while self._wait_for_turn():
                try:
                    self._take_turn()
                    self._pause = 0.0
                except ClientGoneError as error:
                    self._reconnect(error)
                except HeadraceError as error:
                    if not error.retryable:
                        raise
                    self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
                    self._not_before = time.monotonic() + self._pause * jitter(0.75, 1.25)
                    _log.warning("tunnel %s does not respond; trying again: %s", self._tunnel.name, error)
        except Exception as error:
            self._fail(error)
        finally:
            self._save_and_disconnect()

    def _wait_for_turn(self) -> bool:
        with self._changed:
            while not self._leaving:
                wanted = 0.0 if self._hurry else min(self._next_save, self._next_beat)
                remaining = max(wanted, self._not_before) - time.monotonic()
                if remaining <= 0:
                    return True
                self._changed.wait(remaining)
            return False

    def _take_turn(self) -> None:
        with self._changed:
            hurry, self._hurry = self._hurry, False
        if self._client is None:
            self._client = self._tunnel.connect(tag=self._tag, timeout=self._pace.timeout)
        if hurry or time.monotonic() >= self._next_save:
            self._save(self._client)
            self._next_save = time.monotonic() + self._pace.checkpoint_interval
        if hurry or time.monotonic() >= self._next_beat:
            self._beat(self._client)
            self._next_beat = time.monotonic() + self._pace.heartbeat_interval

    def _save(self, client: WorkerClient) -> None:
        with self._changed:
            unsaved = [
                (leased, leased.processed) for leased in self._leased.values() if leased.processed != leased.saved
            ]
        for leased, position in unsaved:
            try:
                client.save(leased.id, position, leased.sequence + 1)
            except SequenceNumberError:
                # Another client has saved a position. The next heartbeat shows which client has the channel.
                leased.sequence = client.saved(leased.id).sequence
                with self._changed:
                    self._hurry = True
            except NotFoundError as error:
                # Another client has finished the channel, or the tunnel was dropped. The next heartbeat shows it.
                with self._changed:
                    leased.error, self._hurry = error, True
            else:
                with self._changed:
                    leased.saved, leased.sequence = position, leased.sequence + 1
                    self._changed.notify_all()

    def _beat(self, client: WorkerClient) -> None:
        begun = time.monotonic()
        with self._changed:
            suspects = [leased for leased in self._leased.values() if leased.error is not None]
            report = [leased.report() for leased in self._leased.values()]
        leases = {lease.channel: lease for lease in client.heartbeat(report)}
        with self._changed:
            self._safe_until = begun + self._pace.timeout
            lost = [channel for channel in self._leased if channel not in leases]
            for channel in lost:
                del self._leased[channel]
            added: list[Lease] = []
            for lease in leases.values():
                if self._is_new(lease):
                    added.append(lease)
                else:
                    self._leased[lease.channel].update(lease)
            for leased in suspects:
                if leased.error is not None and self._is_current(leased):
                    raise leased.error
        new = [self._begun(lease, client.saved(lease.channel)) for lease in added]
        with self._changed:
            self._leased.update({leased.id: leased for leased in new})
            self._joined = True
            # Report finished and released channels at once, because other workers wait for them or their children.
            if any(leased.has_news for leased in self._leased.values()):
                self._hurry = True
            self._changed.notify_all()
        if lost or added:
            _log.debug("tunnel %s, client %s: got %s, lost %s", self._tunnel.name, client.id, [h.id for h in new], lost)

    def _begun(self, lease: Lease, saved: Saved) -> LeasedChannel:
        return LeasedChannel(lease, saved, None if self._resume is None else self._resume(lease.channel, saved))

    def _is_new(self, lease: Lease) -> bool:
        leased = self._leased.get(lease.channel)
        # A channel that was released and is leased to this worker again starts at its saved position.
        released = leased is not None and leased.lease.status in (LeaseStatus.CLOSE, LeaseStatus.TERMINATED)
        return leased is None or (released and lease.version > leased.lease.version)

    def _reconnect(self, error: ClientGoneError) -> None:
        """Forget all channels, and connect again after a random pause, because other workers may do so, too."""
        _log.warning("tunnel %s, worker %s connects again: %s", self._tunnel.name, self._tag or "without a tag", error)
        with self._changed:
            self._leased.clear()
            self._ready.clear()
            self._joined = False
            self._client = None
            self._not_before = time.monotonic() + jitter(0, self._pace.heartbeat_interval)
            self._hurry = True

    def _save_and_disconnect(self) -> None:
        try:
            if self._client is not None:
                self._save(self._client)
                self._client.close()
        except HeadraceError as error:
            _log.info(
                "tunnel %s: the last position was not saved; changes will come again: %s", self._tunnel.name, error
            )
        atexit.unregister(self.close)

    # -- both ---------------------------------------------------------------------------------------------

    def _ask_keeper(self) -> None:
        """Make the keeper save and send a heartbeat now. The caller holds the condition."""
        self._hurry = True
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._leaving = True
            self._changed.notify_all()


def _cut(tunnel: ConsumedTunnel, channel: str, start: Position, page: Page, most: int) -> Iterator[Page]:
    """Yield a page in pieces of at most ``most`` rows. A page without rows yields nothing.

    A pre-image stays with the change that follows it, so a piece can have one row more.

    Args:
        start: the position at which the page was read.
    """
    changes = page.changes
    while changes.num_rows > most:
        rows = changes.whole_pairs(most)
        if rows == changes.num_rows:
            break
        start = tunnel.advance(channel, start, rows)
        yield Page(changes.slice(0, rows), start)
        changes = changes.slice(rows)
    if changes.num_rows:
        yield Page(changes, page.next)
