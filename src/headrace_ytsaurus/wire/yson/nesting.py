"""Vectorized search for the ends of nested values in binary YSON.

One automaton with the grammar processes all values in lock-step, one token of each value in each step. There is no loop
over values.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace_ytsaurus.wire.yson.message import Bytes, Effort, Marker, Message, Places, UnusualError

# Kinds of tokens.
(_NONE, _STRING, _NUMBER, _DOUBLE, _SHORT, _LIST, _MAP, _ATTRIBUTES) = range(8)
(_LIST_END, _MAP_END, _ATTRIBUTES_END, _ITEM, _KEY) = range(8, 13)
# States, named after the expected token: a value; a value without attributes; an item or the list's end; a key or the
# end of a map or of attributes; the sign after a key; the sign after an item.
(_VALUE, _BARE, _IN_LIST, _IN_MAP, _IN_ATTRIBUTES, _AFTER_KEY, _AFTER_ITEM, _DONE) = range(8)
# Actions: error, end of the value, next item; open or close the container with the added number, go to the added
# state.
(_FAIL, _END, _NEXT) = range(3)
_OPEN, _CLOSE, _GO = 4, 8, 16
_OPENED: Final = {_LIST: 1, _MAP: 2, _ATTRIBUTES: 3}
_CLOSED: Final = {_LIST_END: 1, _MAP_END: 2, _ATTRIBUTES_END: 3}
_INSIDE = np.array([_DONE, _IN_LIST, _IN_MAP, _IN_ATTRIBUTES], dtype=np.uint8)


def _token_kinds() -> Bytes:
    kinds = np.full(256, _NONE, dtype=np.uint8)
    kinds[Marker.STRING], kinds[Marker.DOUBLE] = _STRING, _DOUBLE
    kinds[[Marker.INT, Marker.UINT]] = _NUMBER
    kinds[[Marker.FALSE, Marker.TRUE, Marker.ENTITY]] = _SHORT
    kinds[[Marker.LIST, Marker.LIST_END]] = _LIST, _LIST_END
    kinds[[Marker.MAP, Marker.MAP_END]] = _MAP, _MAP_END
    kinds[[Marker.ATTRIBUTES, Marker.ATTRIBUTES_END]] = _ATTRIBUTES, _ATTRIBUTES_END
    kinds[[Marker.ITEM, Marker.KEY]] = _ITEM, _KEY
    return kinds


def _steps() -> Bytes:
    steps = np.full((8, 13), _FAIL, dtype=np.uint8)
    for state in (_VALUE, _BARE, _IN_LIST):
        steps[state, [_STRING, _NUMBER, _DOUBLE, _SHORT]] = _END
        for kind, opened in _OPENED.items():
            if kind != _ATTRIBUTES or state != _BARE:
                steps[state, kind] = _OPEN + opened
    for state in (_IN_MAP, _IN_ATTRIBUTES):
        steps[state, _STRING] = _GO + _AFTER_KEY
    steps[_AFTER_KEY, _KEY] = _GO + _VALUE
    steps[_AFTER_ITEM, _ITEM] = _NEXT
    for kind, closed in _CLOSED.items():
        steps[_AFTER_ITEM, kind] = steps[_INSIDE[closed], kind] = _CLOSE + closed
    return steps


_KINDS: Final = _token_kinds()
_STEPS: Final = _steps()


def value_ends(message: Message, at: Places, limits: Places, effort: Effort) -> Places:
    """Return the ends of the values at the positions.

    Raises:
        UnusualError: a value is broken, exceeds its limit, has tokens of text YSON, or has too many tokens.
    """
    ends = at.copy()
    which = np.arange(len(at))
    state = np.full(len(at), _VALUE, dtype=np.uint8)
    # Open containers, two bits for each: 1 list, 2 map, 3 attributes; the innermost is lowest.
    opened = np.zeros(len(at), dtype=np.uint64)
    while True:
        effort.spend()
        _require((at < limits).all(), "a value without an end")
        kinds = _KINDS[message.tags(at)]
        step = _STEPS[state, kinds]
        _require(step.all(), "a token where none can be")
        at = _behind(message, at, kinds)
        inner = opened & np.uint64(3)
        opens, closes = step >> 2 == 1, step >> 2 == 2
        closed = step & 3
        _require(not (closes & (closed != inner)).any(), "brackets that do not match")
        _require(not (opens & (opened >> np.uint64(60) > 0)).any(), "values nested too deep")
        opened = np.where(opens, opened << np.uint64(2) | closed, np.where(closes, opened >> np.uint64(2), opened))
        ended = (step == _END) | (closes & (closed != _OPENED[_ATTRIBUTES]))
        state = np.where(step >= _GO, step - _GO, _BARE)
        state = np.where(ended, np.where(opened == 0, _DONE, _AFTER_ITEM), state)
        state = np.where(opens | (step == _NEXT), _INSIDE[(opened & np.uint64(3)).astype(np.int64)], state)
        done = state == _DONE
        if done.any():
            _require((at[done] <= limits[done]).all(), "a value without an end")
            ends[which[done]] = at[done]
            go_on = ~done
            which, at, limits, state, opened = which[go_on], at[go_on], limits[go_on], state[go_on], opened[go_on]
            if not len(which):
                return ends


def _behind(message: Message, at: Places, kinds: Bytes) -> Places:
    """Return the positions after the tokens at the positions."""
    at = at + 1
    if (which := np.flatnonzero(kinds == _STRING)).size:
        begin, lengths = message.text_spans(at[which])
        at[which] = begin + lengths
    if (which := np.flatnonzero(kinds == _NUMBER)).size:
        at[which] += message.varints(at[which])[1]
    at[kinds == _DOUBLE] += 8
    return at


def _require(holds: bool | np.bool_, problem: str) -> None:
    if not holds:
        raise UnusualError(problem)
