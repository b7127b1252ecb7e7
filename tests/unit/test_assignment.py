"""The assignment of channels, with simulated clients: each channel has one client, and the shares are even."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.model.tunnels.assignment import Assignment, ClientLife, leases_of, rebalance
from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.values import ChannelState

OPEN, WAITING, FINISHED = ChannelState.OPEN, ChannelState.WAITING, ChannelState.FINISHED
TIMEOUT = 10.0


def holders(assignments: dict[str, Assignment]) -> dict[str, str | None]:
    return {channel: held.client for channel, held in assignments.items()}


def share(names: Iterable[str], **clients: float) -> dict[str, Assignment]:
    """Assign open channels to clients, each with the time of its last heartbeat."""
    lives = {client: ClientLife(seen, TIMEOUT) for client, seen in clients.items()}
    return rebalance(dict.fromkeys(names, OPEN), {}, lives, "a", [], now=0.0)


class Simulator(RuleBasedStateMachine):
    """A tunnel whose channels open, split and end, and clients that connect, respond late, hang and die."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.channels: dict[str, ChannelState] = {"c0": OPEN, "c1": OPEN, "c2": OPEN}
        self.assignments: dict[str, Assignment] = {}
        self.clients: dict[str, ClientLife] = {}
        self.views: dict[str, dict[str, Lease]] = {}
        self.overdue: set[tuple[str, str]] = set()

    def live(self) -> list[str]:
        return [client for client, life in self.clients.items() if not life.timed_out(self.now)]

    def beat(self, client: str, *, answers: bool = True, heard: bool = True) -> None:
        """Send a heartbeat. A client that hangs does not respond, and a response can be lost."""
        self.clients[client] = ClientLife(self.now, TIMEOUT)
        view = self.views.setdefault(client, {})
        if answers:
            for channel, lease in list(view.items()):
                if self.channels[channel] is FINISHED and lease.status in (LeaseStatus.OPEN, LeaseStatus.CLOSING):
                    view[channel] = Lease(channel, lease.version + 1, LeaseStatus.TERMINATED)
                elif lease.status is LeaseStatus.CLOSING:
                    view[channel] = Lease(channel, lease.version + 1, LeaseStatus.CLOSE)
        before = self.assignments
        self.assignments = rebalance(self.channels, before, self.clients, client, list(view.values()), self.now)
        assert list(self.assignments) == list(self.channels)
        for channel, held in before.items():
            after = self.assignments[channel]
            assert after.version >= held.version
            if (after.client, after.status) != (held.client, held.status):
                assert after.version > held.version
            if held.status is LeaseStatus.CLOSING and after.client != held.client and held.client in self.live():
                self.overdue.add((held.client, channel))
        if heard:
            answer = {lease.channel: lease for lease in leases_of(self.assignments, client)}
            self.views[client] = {
                channel: max(lease, view.get(channel, lease), key=lambda one: one.version)
                for channel, lease in answer.items()
            }
            self.overdue -= {(client, channel) for channel in self.channels}
        for gone in set(self.clients) - set(self.live()):
            del self.clients[gone]

    @rule(name=st.sampled_from("abcde"), answers=st.booleans(), heard=st.booleans())
    def some_client_beats(self, name: str, answers: bool, heard: bool) -> None:
        if name not in self.clients:
            self.views.pop(name, None)
        self.beat(name, answers=answers, heard=heard)

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("abcde"))
    def a_client_closes(self, name: str) -> None:
        self.clients.pop(name, None)
        self.views.pop(name, None)

    @rule(data=st.data())
    @precondition(lambda self: any(state is OPEN for state in self.channels.values()))
    def a_channel_ends(self, data: st.DataObject) -> None:
        candidates = [channel for channel, state in self.channels.items() if state is OPEN]
        self.channels[data.draw(st.sampled_from(candidates))] = FINISHED

    @rule(count=st.integers(1, 3), state=st.sampled_from([OPEN, WAITING]))
    @precondition(lambda self: len(self.channels) < 30)
    def channels_come(self, count: int, state: ChannelState) -> None:
        for _ in range(count):
            self.channels[f"c{len(self.channels)}"] = state

    @rule()
    def waiting_channels_open(self) -> None:
        self.channels = {channel: OPEN if state is WAITING else state for channel, state in self.channels.items()}

    @invariant()
    def no_two_live_clients_read_one_channel(self) -> None:
        readers: dict[str, list[str]] = {}
        for client in self.live():
            for channel, lease in self.views.get(client, {}).items():
                if lease.status in (LeaseStatus.OPEN, LeaseStatus.CLOSING) and (client, channel) not in self.overdue:
                    readers.setdefault(channel, []).append(client)
        assert all(len(clients) == 1 for clients in readers.values()), readers

    @invariant()
    def only_open_channels_have_clients(self) -> None:
        for channel, held in self.assignments.items():
            assert (held.client is not None) == (held.status in (LeaseStatus.OPEN, LeaseStatus.CLOSING))
            if self.channels[channel] is WAITING:
                assert held.client is None

    @invariant()
    def in_the_end_every_open_channel_is_read_and_the_shares_are_even(self) -> None:
        calm = Simulator.__new__(Simulator)
        calm.now, calm.channels, calm.assignments = self.now, dict(self.channels), dict(self.assignments)
        calm.clients, calm.overdue = dict(self.clients), set(self.overdue)
        calm.views = {client: dict(view) for client, view in self.views.items()}
        staying = calm.live()
        # One round requests channels, one releases them, one assigns them; the next client can have left meanwhile.
        for _ in range(6):
            for client in staying:
                calm.beat(client)
        if staying:
            open_channels = [channel for channel, state in calm.channels.items() if state is OPEN]
            shares = dict.fromkeys(staying, 0)
            for channel in open_channels:
                held = calm.assignments[channel]
                assert held.status is LeaseStatus.OPEN
                assert held.client is not None
                shares[held.client] += 1
                assert calm.views[held.client][channel].status is LeaseStatus.OPEN
            assert max(shares.values()) - min(shares.values()) <= 1
            settled = calm.assignments
            for client in staying:
                calm.beat(client)
            assert calm.assignments == settled


TestSimulator = Simulator.TestCase


def test_one_client_gets_all_open_channels() -> None:
    channels = {"base": FINISHED, "now": OPEN, "later": WAITING}
    after = rebalance(channels, {}, {"a": ClientLife(0.0, TIMEOUT)}, "a", [], now=0.0)
    assert holders(after) == {"base": None, "now": "a", "later": None}
    assert leases_of(after, "a") == [Lease("now", 1, LeaseStatus.OPEN)]


def test_a_second_client_gets_half_of_the_channels_after_their_release() -> None:
    clients = {"a": ClientLife(0.0, TIMEOUT), "b": ClientLife(0.0, TIMEOUT)}
    channels = dict.fromkeys("wxyz", OPEN)
    asked = rebalance(channels, share("wxyz", a=0.0), clients, "b", [], now=1.0)
    assert leases_of(asked, "b") == []
    assert [held.status for held in asked.values()] == [LeaseStatus.OPEN] * 2 + [LeaseStatus.CLOSING] * 2
    report = [Lease("y", 3, LeaseStatus.CLOSE), Lease("z", 2, LeaseStatus.CLOSING)]
    given = rebalance(channels, asked, clients, "a", report, now=2.0)
    assert holders(given) == {"w": "a", "x": "a", "y": "b", "z": "a"}


def test_the_channels_of_a_lost_client_go_to_the_others() -> None:
    clients = {"a": ClientLife(0.0, TIMEOUT), "b": ClientLife(0.0, TIMEOUT)}
    both = share("wxyz", a=0.0, b=0.0)
    assert sorted(filter(None, holders(both).values())) == ["a", "a", "b", "b"]
    later = TIMEOUT + 1
    clients["b"] = ClientLife(later, TIMEOUT)
    after = rebalance(dict.fromkeys("wxyz", OPEN), both, clients, "b", [], now=later)
    assert set(holders(after).values()) == {"b"}


def test_a_client_that_does_not_release_a_channel_loses_it_after_its_timeout() -> None:
    channels = dict.fromkeys("xy", OPEN)
    assignments = rebalance(
        channels, share("xy", a=0.0), {"a": ClientLife(0, 10), "b": ClientLife(0, 10)}, "b", [], 0.0
    )
    for now in (5.0, 10.0, 11.0):
        clients = {"a": ClientLife(now, TIMEOUT), "b": ClientLife(now, TIMEOUT)}
        assignments = rebalance(channels, assignments, clients, "b", [], now)
        assert holders(assignments)["y"] == ("b" if now > TIMEOUT else "a")
    assert leases_of(assignments, "a") == [Lease("x", 1, LeaseStatus.OPEN)]


def test_a_channel_is_not_finished_before_its_end_is_saved() -> None:
    clients = {"a": ClientLife(0.0, TIMEOUT)}
    report = [Lease("x", 2, LeaseStatus.TERMINATED)]
    after = rebalance({"x": OPEN}, share("x", a=0.0), clients, "a", report, now=0.0)
    assert after["x"] == Assignment(LeaseStatus.OPEN, 3, "a", 0.0)


@pytest.mark.parametrize("version", [-1, 0, 1, 1 << 62, (1 << 63) - 1])
def test_reports_of_old_or_impossible_versions_change_nothing(version: int) -> None:
    before = share("x", a=0.0)
    clients = {"a": ClientLife(0.0, TIMEOUT)}
    assert rebalance({"x": OPEN}, before, clients, "a", [Lease("x", version, LeaseStatus.CLOSE)], 0.0) == before


def test_a_client_cannot_release_the_channel_of_another() -> None:
    before = share("x", a=0.0)
    clients = {"a": ClientLife(0.0, TIMEOUT), "b": ClientLife(0.0, TIMEOUT)}
    report = [Lease("x", 9, LeaseStatus.CLOSE), Lease("unknown", 1, LeaseStatus.OPEN)]
    assert rebalance({"x": OPEN}, before, clients, "b", report, 0.0) == before


def test_a_suspended_channel_is_released_and_not_assigned() -> None:
    channels, clients = dict.fromkeys("xy", OPEN), {"a": ClientLife(0.0, TIMEOUT)}
    asked = rebalance(channels, share("xy", a=0.0), clients, "a", [], 0.0, suspended={"x"})
    assert asked["x"] == Assignment(LeaseStatus.CLOSING, 2, "a", 0.0)
    report = [Lease("x", 3, LeaseStatus.CLOSE)]
    given_back = rebalance(channels, asked, clients, "a", report, 0.0, suspended={"x"})
    assert holders(given_back) == {"x": None, "y": "a"}
    assert holders(rebalance(channels, given_back, clients, "a", [], 0.0)) == {"x": "a", "y": "a"}
