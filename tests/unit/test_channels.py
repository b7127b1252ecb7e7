"""The rule that opens channels, with simulated channels: a channel opens after all its parents are finished."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.tunnels.channels import channel_states
from headrace.model.tunnels.values import ChannelState


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], list[int]]:
    """Channels of random splits and merges, and a random order of attempts to finish them."""
    parents: dict[str, tuple[str, ...]] = {"c0": ()}
    tips = ["c0"]
    for _ in range(draw(st.integers(0, 12))):
        merging = len(tips) > 1 and draw(st.booleans())
        replaced = [tips.pop(draw(st.integers(0, len(tips) - 1))) for _ in range(2 if merging else 1)]
        for _ in range(1 if merging else 2):
            child = f"c{len(parents)}"
            parents[child] = tuple(replaced)
            tips.append(child)
    return parents, draw(st.lists(st.integers(0, 40), max_size=60))


@given(histories())
def test_channels_open_only_after_their_parents_and_all_channels_open_eventually(
    history: tuple[dict[str, tuple[str, ...]], list[int]],
) -> None:
    parents, choices = history
    finished: list[str] = []
    for choice in choices + [0] * len(parents):
        states = channel_states(parents, finished)
        for channel, state in states.items():
            expected = (
                ChannelState.FINISHED
                if channel in finished
                else ChannelState.OPEN
                if set(parents[channel]) <= set(finished)
                else ChannelState.WAITING
            )
            assert state is expected
        readable = [channel for channel, state in states.items() if state is ChannelState.OPEN]
        if not readable:
            break
        finished.append(readable[choice % len(readable)])
    assert set(finished) == set(parents)


def test_a_deleted_parent_counts_as_finished() -> None:
    assert channel_states({"child": ("gone",)}, set()) == {"child": ChannelState.OPEN}


@given(histories(), st.data())
def test_forgetting_finished_channels_changes_no_other_state(
    history: tuple[dict[str, tuple[str, ...]], list[int]], data: st.DataObject
) -> None:
    parents, _ = history
    finished = set(data.draw(st.lists(st.sampled_from(sorted(parents)))))
    forgotten = set(data.draw(st.lists(st.sampled_from(sorted(finished))))) if finished else set()
    kept = {channel: followed for channel, followed in parents.items() if channel not in forgotten}
    before, after = channel_states(parents, finished), channel_states(kept, finished)
    assert after == {channel: before[channel] for channel in kept}
