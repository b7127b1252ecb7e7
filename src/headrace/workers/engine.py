"""The threads of a worker: one that keeps the client alive and saves, some that read ahead, and the consumer's own.

All state is guarded by one condition, and no call to the store is made under it. Only the *keeper* uses the tunnel's
client. *Readers* take channels that are due, read a page, and put it where the consumer finds it.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import time
from collections import deque
from typing import NamedTuple

from headrace.errors import (
    ClientGoneError,
    DataLossError,
    HeadraceError,
    NotFoundError,
    SequenceNumberError,
    StoreError,
)
from headrace.ports import Tunnel, TunnelClient
from headrace.tunnels.leases import Lease, LeaseStatus
from headrace.tunnels.values import FINISHED, ChannelState, Page, Position
from headrace.workers.leased_channel import FIRST_PAUSE, LONGEST_PAUSE, LeasedChannel
from headrace.workers.pages import cut

_READERS = 4
# A page of so many rows is taken for full, whatever more was asked for: services have limits of their own.
_FULL_PAGE_ROWS = 500
_WATCH_SECONDS = 0.2
_LOOK_SECONDS = 0.1
_JOIN_SECONDS = 5.0
# Longer than a save takes that is slow, and much shorter than a store that is away is asked again.
_GOODBYE_SECONDS = 20.0
_log = logging.getLogger("headrace")


class Pace(NamedTuple):
    """How often a worker saves and sends heartbeats, and for how long it may be silent, all in seconds."""

    checkpoint_interval: float
    heartbeat_interval: float
    timeout: float


class Handed(NamedTuple):
    """A page that the consumer has in hand, and its channel."""

    channel: LeasedChannel
    page: Page


class Engine:
    """Reads a tunnel's channels, as many as this worker is given.

    Args:
        tunnel: what to read.
        tag: what the worker is called.
        batch_rows: how many rows to ask for at a time.
    """

    def __init__(self, tunnel: Tunnel, tag: str, batch_rows: int, pace: Pace) -> None:
        self._tunnel = tunnel
        self._tag = tag
        self._batch_rows = batch_rows
        self._pace = pace
        self._changed = threading.Condition()
        self._client: TunnelClient | None = None
        # The process that reads. A forked child has none of its threads, and perhaps their locks.
        self._process: int | None = None
        self._threads: list[threading.Thread] = []
        self._leased: dict[str, LeasedChannel] = {}
        self._ready: deque[LeasedChannel] = deque()
        self._in_hand: Handed | None = None
        self._watching = self._hurry = self._stopping = self._leaving = False
        self._failure: BaseException | None = None
        self._next_save = self._next_beat = self._not_before = self._pause = 0.0
        # Until then nobody else can have been given this worker's channels.
        self._safe_until = 0.0

    def start(self) -> None:
        """Connect to the tunnel and begin to read; does nothing once `leave` was called."""
        if self._leaving:
            return
        self._client = self._tunnel.connect(tag=self._tag, timeout=self._pace.timeout)
        self._next_save = time.monotonic() + self._pace.checkpoint_interval
        keeper = threading.Thread(target=self._keep, name="headrace-keeper", daemon=True)
        readers = [threading.Thread(target=self._read, name="headrace-reader", daemon=True) for _ in range(_READERS)]
        self._threads = [keeper, *readers]
        # Daemon threads end with the interpreter, but not before this.
        atexit.register(self.close)
        self._process = os.getpid()
        for thread in self._threads:
            thread.start()

    # -- the consumer's side ---------------------------------------------------------------------------

    def take(self, *, stop_at_the_end: bool) -> Handed | None:
        """Return the next page, and count the one before as processed; None if there will be no more.

        Raises the error that has ended the work of the other threads.
        """
        if self._is_inherited:
            raise StoreError(
                "a tunnel worker reads in the process that started it, and this one is a fork of that process",
                received=f"process {os.getpid()}",
                remedy="call tunnel.consume() in this process",
            )
        with self._changed:
            if self._in_hand is not None:
                self.done(self._in_hand)
        while True:
            with self._changed:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                if self._stopping or self._leaving:
                    return None
                self._in_hand = self._hand_out()
                if self._in_hand is not None:
                    # There is room to read ahead.
                    self._changed.notify_all()
                    return self._in_hand
                at_rest = all(leased.at_rest for leased in self._leased.values())
                if stop_at_the_end and not at_rest:
                    self._ask_keeper()
                if not (stop_at_the_end and at_rest):
                    self._changed.wait(_LOOK_SECONDS if stop_at_the_end else None)
                    continue
            if self._all_is_read():
                return None
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._leaving or self._stopping, _LOOK_SECONDS)

    def done(self, handed: Handed) -> None:
        """Count a page as processed, unless it is another's by now or was counted already."""
        if self._is_inherited:
            return
        with self._changed:
            if self._in_hand is not handed:
                return
            self._in_hand = None
            handed.channel.done()
            if handed.channel.has_news:
                self._ask_keeper()

    def stop(self) -> None:
        """Let `take` return None from now on."""
        if self._is_inherited:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    @property
    def _is_inherited(self) -> bool:
        return self._process not in (None, os.getpid())

    def leave(self) -> None:
        """Let all threads come to their end by themselves; the keeper saves and gives the channels back."""
        if self._is_inherited:
            return
        with self._changed:
            self._leaving = True
            self._changed.notify_all()

    def close(self) -> None:
        """Leave, and wait until progress is saved and the channels are given back.

        A store that is away is not waited for much longer than a save takes. What was not saved then comes again, and
        others get the channels after the time-out. In a forked child nothing happens.
        """
        if self._is_inherited:
            return
        self.leave()
        for number, thread in enumerate(self._threads):
            if thread is not threading.current_thread():
                # A reader that hangs in a request has nothing to save.
                thread.join(_GOODBYE_SECONDS if number == 0 else _JOIN_SECONDS)
                if number == 0 and thread.is_alive():
                    _log.warning("tunnel %s does not answer; its last progress may not be saved", self._tunnel.name)

    def _hand_out(self) -> Handed | None:
        # A worker that was out of touch for its time-out hands out nothing until it has heard from the tunnel.
        while self._ready and time.monotonic() < self._safe_until:
            leased = self._ready.popleft()
            if leased.pages and self._leased.get(leased.id) is leased:
                return Handed(leased, leased.hand_out())
        return None

    def _all_is_read(self) -> bool:
        """Tell whether the whole tunnel is read to its end and saved, whoever reads the channels."""
        try:
            unfinished = [each for each in self._tunnel.channels() if each.state is not ChannelState.FINISHED]
            return not any(
                channel.state is ChannelState.WAITING or self._has_more(channel.id, channel.committed)
                for channel in unfinished
            )
        except HeadraceError as error:
            # Finished just now, by another; or lost, which whoever has the channel finds out.
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
                    page = self._tunnel.read(leased.id, start, self._batch_rows)
                    pages = list(cut(self._tunnel, leased.id, start, page, self._batch_rows))
                except HeadraceError as error:
                    self._take_error(leased, error)
                else:
                    self._take_pages(leased, start, pages, page.next)
        except Exception as error:
            self._fail(error)

    def _take_error(self, leased: LeasedChannel, error: HeadraceError) -> None:
        if error.retryable:
            _log.warning("channel %s of tunnel %s is read again: %s", leased.id, self._tunnel.name, error)
        with self._changed:
            leased.failed(error, time.monotonic())
            if leased.error is not None:
                # A channel that another has by now, or has finished, cannot be read either: let the tunnel say.
                self._ask_keeper()

    def _take_pages(self, leased: LeasedChannel, start: Position, pages: list[Page], behind: Position) -> None:
        full = min(self._batch_rows, _FULL_PAGE_ROWS)
        with self._changed:
            if leased.arrived(start, pages, behind, time.monotonic(), full):
                self._ready.extend([leased] * len(pages))
            if leased.has_news:
                self._ask_keeper()
            self._changed.notify_all()

    def _next_to_read(self) -> LeasedChannel | None:
        """Wait for a channel that is due; None when the worker leaves."""
        while True:
            with self._changed:
                if self._leaving:
                    return None
                leased = min(
                    (leased for leased in self._leased.values() if leased.may_be_read),
                    key=lambda leased: leased.due,
                    default=None,
                )
                pause = None if leased is None else leased.due - time.monotonic()
                if leased is not None and pause is not None and pause <= 0:
                    leased.reading = True
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
                    self._begin_again(error)
                except HeadraceError as error:
                    if not error.retryable:
                        raise
                    self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
                    self._not_before = time.monotonic() + self._pause * random.uniform(0.75, 1.25)
                    _log.warning("tunnel %s does not answer, and is asked again: %s", self._tunnel.name, error)
        except Exception as error:
            self._fail(error)
        finally:
            self._say_goodbye()

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

    def _save(self, client: TunnelClient) -> None:
        with self._changed:
            unsaved = [
                (leased, leased.processed) for leased in self._leased.values() if leased.processed != leased.saved
            ]
        for leased, position in unsaved:
            try:
                client.save(leased.id, position, leased.sequence + 1)
            except SequenceNumberError:
                # Somebody else has saved; the heartbeat will tell whose the channel is.
                leased.sequence = client.saved(leased.id).sequence
                with self._changed:
                    self._hurry = True
            except NotFoundError as error:
                # Finished by somebody else and forgotten; or the tunnel was dropped. The heartbeat will tell.
                with self._changed:
                    leased.error, self._hurry = error, True
            else:
                with self._changed:
                    leased.saved, leased.sequence = position, leased.sequence + 1
                    self._changed.notify_all()

    def _beat(self, client: TunnelClient) -> None:
        begun = time.monotonic()
        with self._changed:
            suspects = [leased for leased in self._leased.values() if leased.error is not None]
            report = [leased.report() for leased in self._leased.values()]
        answer = {lease.channel: lease for lease in client.heartbeat(report)}
        with self._changed:
            self._safe_until = begun + self._pace.timeout
            lost = [channel for channel in self._leased if channel not in answer]
            for channel in lost:
                del self._leased[channel]
            given: list[Lease] = []
            for lease in answer.values():
                if self._is_new(lease):
                    given.append(lease)
                else:
                    self._leased[lease.channel].told(lease)
            for leased in suspects:
                if leased.error is not None and self._leased.get(leased.id) is leased:
                    raise leased.error
        new = [LeasedChannel(lease, client.saved(lease.channel)) for lease in given]
        with self._changed:
            self._leased.update({leased.id: leased for leased in new})
            # What is read to its end, or to be given back, is said at once: others wait for it.
            if any(leased.has_news for leased in self._leased.values()):
                self._hurry = True
            self._changed.notify_all()
        if lost or given:
            _log.debug("tunnel %s, client %s: got %s, lost %s", self._tunnel.name, client.id, [h.id for h in new], lost)

    def _is_new(self, lease: Lease) -> bool:
        leased = self._leased.get(lease.channel)
        # Given back, and then given to this worker once more: it begins anew at what is saved.
        gave_back = leased is not None and leased.lease.status in (LeaseStatus.CLOSE, LeaseStatus.TERMINATED)
        return leased is None or (gave_back and lease.version > leased.lease.version)

    def _begin_again(self, error: ClientGoneError) -> None:
        """Forget all channels, and connect again a little later: others may have lost theirs at the same moment."""
        _log.warning("tunnel %s, worker %s connects again: %s", self._tunnel.name, self._tag or "without a tag", error)
        with self._changed:
            self._leased.clear()
            self._ready.clear()
            self._client = None
            self._not_before = time.monotonic() + random.uniform(0, self._pace.heartbeat_interval)
            self._hurry = True

    def _say_goodbye(self) -> None:
        try:
            if self._client is not None:
                self._save(self._client)
                self._client.close()
        except HeadraceError as error:
            _log.info("tunnel %s: the last progress was not saved, and comes again: %s", self._tunnel.name, error)
        atexit.unregister(self.close)

    # -- both ---------------------------------------------------------------------------------------------

    def _ask_keeper(self) -> None:
        """Let the keeper save and send a heartbeat now. The condition is held."""
        self._hurry = True
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._leaving = True
            self._changed.notify_all()
