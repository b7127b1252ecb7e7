"""Random columns of YTsaurus, and rows of them as YTsaurus' own client writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import yt.yson
import yt.yson.parser
import yt.yson.writer
from hypothesis import strategies as st

from headrace_ytsaurus.wire.types import RANGES, UNSIGNED, TypeV3, YtColumn, members_of, type_parts, without_optional
from headrace_ytsaurus.wire.yson import documents

_LEAVES = (*RANGES, "float", "double", "bool", "string", "utf8", "json", "uuid")
_NAMES = ("a", "b c", "ключ", "d\\e", '"', "$v")


def optional(item: TypeV3) -> TypeV3:
    return {"type_name": "optional", "item": item}


def _decimals() -> st.SearchStrategy[TypeV3]:
    sizes = st.integers(1, 35).flatmap(lambda precision: st.tuples(st.just(precision), st.integers(0, precision)))
    return sizes.map(lambda size: {"type_name": "decimal", "precision": size[0], "scale": size[1]})


LEAF_TYPES: st.SearchStrategy[TypeV3] = st.sampled_from(_LEAVES) | _decimals()


def _named(kind: str, items: Sequence[TypeV3]) -> TypeV3:
    if kind in ("tuple", "variant over a tuple"):
        return {"type_name": kind.split()[0], "elements": [{"type": item} for item in items]}
    members = [{"name": name, "type": item} for name, item in zip(_NAMES, items, strict=False)]
    return {"type_name": kind.split()[0], "members": members}


def _composite(items: st.SearchStrategy[TypeV3]) -> st.SearchStrategy[TypeV3]:
    inner = items | items.map(optional)
    return st.one_of(
        inner.map(lambda item: {"type_name": "list", "item": item}),
        st.tuples(LEAF_TYPES, inner).map(lambda pair: {"type_name": "dict", "key": pair[0], "value": pair[1]}),
        st.builds(_named, st.sampled_from(["struct", "tuple"]), st.lists(inner, min_size=1, max_size=3)),
        st.builds(
            _named,
            st.sampled_from(["variant over a struct", "variant over a tuple"]),
            st.lists(items, min_size=1, max_size=3),
        ),
        inner.map(lambda item: {"type_name": "tagged", "tag": "a tag", "item": item}),
    )


TYPES: st.SearchStrategy[TypeV3] = st.recursive(LEAF_TYPES, _composite, max_leaves=4)
"""Types that are not optional at their outermost."""


def wire_values(yt: TypeV3) -> st.SearchStrategy[Any]:
    """Return values of a type as they are on the wire, null among them if it is optional."""
    inner, required = without_optional(yt)
    values = _wire_values(inner)
    return values if required else st.none() | values


def _wire_values(yt: TypeV3) -> st.SearchStrategy[Any]:
    name, parts = type_parts(yt)
    if name in RANGES:
        number = yt_number(name)
        low, high = RANGES[name]
        return (st.integers(low, high) | st.sampled_from([low, high])).map(number)
    match name:
        case "double" | "float":
            return st.floats(width=32 if name == "float" else 64, allow_nan=False)
        case "bool":
            return st.booleans()
        case "uuid":
            return st.binary(min_size=16, max_size=16)
        case "decimal":
            return _wire_decimals(parts["precision"])
        case "list":
            return st.lists(wire_values(parts["item"]), max_size=3)
        case "dict":
            pair = st.tuples(wire_values(parts["key"]), wire_values(parts["value"])).map(list)
            return st.lists(pair, max_size=3)
        case "struct":
            return _mappings({wire: wire_values(one) for _, wire, one in members_of(yt)})
        case "tuple":
            return st.tuples(*(wire_values(one) for _, _, one in members_of(yt))).map(list)
        case "variant":
            by_name = "members" in parts
            choices = [
                st.tuples(st.just(wire if by_name else int(wire)), wire_values(one)).map(list)
                for _, wire, one in members_of(yt)
            ]
            return st.one_of(choices)
        case "tagged":
            return _wire_values(parts["item"])
    return st.text(max_size=5) | st.text(min_size=60, max_size=70)


def yt_number(name: str) -> Any:
    """Return the class in which `yt.yson` has numbers of a type."""
    return yt.yson.YsonUint64 if name in UNSIGNED else int


def _mappings(values: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return mappings with the keys in this order, which hypothesis' own have not."""
    return st.tuples(*values.values()).map(lambda found: dict(zip(values, found, strict=True)))


def _wire_decimals(precision: int) -> st.SearchStrategy[bytes]:
    width = 4 if precision <= 9 else 8 if precision <= 18 else 16
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1)
    return numbers.map(lambda number: (number + (1 << 8 * width - 1)).to_bytes(width, "big"))


@st.composite
def tables(draw: st.DrawFn, types: st.SearchStrategy[TypeV3] = TYPES) -> tuple[list[YtColumn], list[dict[str, Any]]]:
    """Return columns, and rows with a value or null for each of them, in their order."""
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True))
    columns = [YtColumn.of(name, draw(types), required=draw(st.booleans())) for name in names]
    values = {column.name: wire_values(column.type_v3) for column in columns}
    return columns, draw(st.lists(_mappings(values), max_size=6))


def written(rows: Sequence[Mapping[str, Any] | None], *, text: bool = False) -> bytes:
    """Return rows as YTsaurus' client writes them."""
    form = "text" if text else "binary"
    found: bytes = yt.yson.dumps(rows, yson_format=form, yson_type="list_fragment")
    return found


@contextmanager
def without_bindings() -> Iterator[None]:
    """Let YSON be read and written in pure Python, as where the native bindings are not installed."""
    library = SimpleNamespace(loads=yt.yson.parser.loads, dumps=yt.yson.writer.dumps, TYPE="PYTHON")
    with mock.patch.object(documents, "_library", return_value=library):
        yield
