"""Single YSON values: broken, too deep and too large values raise one type of error."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import yt.yson
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.effort import thorough
from headrace_ytsaurus.wire.yson.documents import MAX_DEPTH, YsonError, dumps, load_fragment, loads
from tests.ytsaurus.unit.yson_samples import without_bindings

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@pytest.fixture(params=["native", "pure"], autouse=True)
def library(request: pytest.FixtureRequest) -> Any:
    with nullcontext() if request.param == "native" else without_bindings():
        yield


@given(VALUES, st.booleans())
@settings(max_examples=thorough(60), deadline=None)
def test_values_round_trip(value: Any, text: bool) -> None:
    assert loads(dumps(value, text)) == value


def test_attributes_and_kinds_of_numbers_are_kept() -> None:
    data = b'{a=5u;b=<q=1>"x";c="\xff";d=#;e=<z=%true>#}'
    value = loads(data)
    assert isinstance(value["a"], yt.yson.YsonUint64)
    assert value["b"].attributes == {"q": 1}
    assert yt.yson.get_bytes(value["c"]) == b"\xff"
    assert loads(dumps(value)) == value
    assert load_fragment(b"{a=x};1;") == [{b"a": b"x"}, 1]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"1;2", b"1]; [2", b"[1", b"]", b"{a}", b"{=1}", b"\x01\xfe\xff\xff\xff\x0f", b'"\\xg', b"5\0x", b"\0"),
        *(b"\x02" + b"\xff" * 20, b"9" * 50, b"9" * 10_000, b"%maybe", b"<a=1>", b"<<", b"[" * 10**6, b"{a=" * 10**5),
        b"<a=" * 1000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    ],
)
def test_invalid_yson_is_an_error(data: bytes) -> None:
    with pytest.raises(YsonError):
        loads(data)


def test_values_of_the_maximum_depth_are_accepted() -> None:
    data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dumps(loads(data)).count(b"[") == MAX_DEPTH


def test_values_that_yson_cannot_represent_are_errors() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, object(), 2**64, -(2**63) - 1, {1: 2}, {"a": {1, 2}, "b": object()}):
        with pytest.raises(YsonError):
            dumps(value)
    while deep:
        deep = deep.pop()


def test_values_of_too_many_bytes_are_errors() -> None:
    with pytest.raises(YsonError, match="at most 5"):
        loads(b"[1;2;3]", max_size=5)


def test_broken_values_raise_one_type_of_error() -> None:
    rng = random.Random(1)
    data = dumps({"a": [1, 2.5, {"b": yt.yson.to_yson_type("x\xff", attributes={"c": [None]})}]}, text=False)
    text = dumps(loads(data))
    for number in range(1000):
        mutated = bytearray(data if number % 2 else text)
        for _ in range(rng.randrange(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.randrange(256)
        with suppress(YsonError):
            dumps(loads(bytes(mutated)))
