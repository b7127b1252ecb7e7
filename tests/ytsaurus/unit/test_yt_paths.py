"""Paths of YTsaurus: nodes, attributes, and invalid paths."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import yt.yson
from hypothesis import given
from hypothesis import strategies as st

from headrace_ytsaurus.wire.paths import PathError, YPath, index_in_list, parse_path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/", YPath()),
        ("//tmp/q", YPath(nodes=("tmp", "q"))),
        ("//tmp/q/@", YPath(nodes=("tmp", "q"), attribute=())),
        ("//tmp/q/@tablets/0/state", YPath(nodes=("tmp", "q"), attribute=("tablets", "0", "state"))),
        ("//@x", YPath(attribute=("x",))),
        ("//tmp/link&", YPath(nodes=("tmp", "link"), link=True)),
        ("//tmp/link&/@id", YPath(nodes=("tmp", "link"), link=True, attribute=("id",))),
        ("//tmp/*", YPath(nodes=("tmp",), children=True)),
        ("//tmp/@*", YPath(nodes=("tmp",), attribute=(), children=True)),
        ("//tmp/@user/*", YPath(nodes=("tmp",), attribute=("user",), children=True)),
        ("#1-2a-3-ff", YPath("#1-2a-3-ff")),
        ("#1-2-3-4/child/@type", YPath("#1-2-3-4", ("child",), ("type",))),
        ("//list/-1", YPath(nodes=("list", "-1"))),
        ("//a:b/c d", YPath(nodes=("a:b", "c d"))),
        (r"//a\/b/\x41\@\\\[\{\&\*", YPath(nodes=("a/b", r"A@\[{&*"))),
        (r"//\xd0\xb0", YPath(nodes=("а",))),
    ],
)
def test_paths_are_parsed(text: str, path: YPath) -> None:
    assert parse_path(text) == path
    assert parse_path(parse_path(text).text) == path
    assert parse_path(text.encode()) == path


@pytest.mark.parametrize(
    ("text", "plain", "attributes"),
    [
        ("primary://tmp/q", "//tmp/q", {"cluster": "primary"}),
        ("a-b_1:#1-2-3-4", "#1-2-3-4", {"cluster": "a-b_1"}),
        ("<cluster=primary;append=%true>//tmp/q", "//tmp/q", {"cluster": "primary", "append": True}),
        ('<queue_consumer_name="a b">//c', "//c", {"queue_consumer_name": "a b"}),
        ("//t{a,b}", "//t", {"columns": ["a", "b"]}),
        ("//t[#1:#5]", "//t", {"ranges": [{"lower_limit": {"row_index": 1}, "upper_limit": {"row_index": 5}}]}),
        ("<a=1>//t{x}[#2]", "//t", {"a": 1, "columns": ["x"], "ranges": [{"exact": {"row_index": 2}}]}),
    ],
)
def test_paths_can_have_attributes(text: str, plain: str, attributes: dict[str, object]) -> None:
    path = parse_path(text)
    assert (path.text, path.attributes) == (plain, attributes)
    assert path.cluster == attributes.get("cluster")


def test_attributes_can_be_given_separately() -> None:
    given_ = yt.yson.to_yson_type("//tmp/q", attributes={"cluster": "c", "x": 1})
    assert parse_path(given_).attributes == {"cluster": "c", "x": 1}
    assert parse_path("p://tmp/q", {"cluster": "c", "x": 1}).attributes == {"cluster": "p", "x": 1}
    assert parse_path("//a").with_attributes({"y": 2}).attributes == {"y": 2}


def test_paths_have_parents_and_children() -> None:
    path = parse_path("//home/link&/@x")
    assert str(path.node) == "//home/link&"
    assert (path.name, str(path.node.parent)) == ("link", "//home")
    assert str(parse_path("//a").child("b/c", "@d")) == r"//a/b\/c/\@d"
    for root in ("/", "#1-2-3-4", "//a/@b"):
        with pytest.raises(PathError, match="no parent"):
            _ = parse_path(root).parent


def test_list_indexes_count_from_either_end() -> None:
    assert [index_in_list(name, 3) for name in ("0", "2", "3", "-1", "-3", "-4", "x", "1" * 30, "+1", "")] == [
        *(0, 2, None, 2, 0, None),
        *([None] * 4),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "a",
            "a/b",
            "//",
            "//a/",
            "//a//b",
            "//a&b",
            "//a/&",
            "//a/@@",
            "//a/*/b",
            "/@x",
        ),
        *("//a/@b&", "#", "#1", "#1-2-3", "#x-1-1-1", "p:", "p:a", "//a\\", "//a\\x4", "//a\\q", "//a["),
        *(
            "//a{",
            "//a{b",
            "//a[#1:#2:#3]",
            "<",
            "<a",
            "<a=1",
            "<a=[[[>//b",
            "<>",
            "//a[" + "(" * 5000,
            "//" + "a" * 70000,
        ),
        # Random inputs, see docs/reliability.md.
        *("//t\ud96f\\x41", "//a\ude59\\/b", "//\ud800"),
    ],
)
def test_invalid_paths_are_errors(text: str) -> None:
    with pytest.raises(PathError):
        parse_path(text)


def test_bytes_are_paths_and_other_types_are_errors() -> None:
    for wrong in (b"\xff//", 5, None, ["//a"]):
        with pytest.raises(PathError):
            parse_path(wrong)  # type: ignore[arg-type]


@given(st.lists(st.text(min_size=1, max_size=8), max_size=5), st.none() | st.lists(st.text(min_size=1), max_size=3))
def test_any_names_can_be_escaped(nodes: list[str], attribute: list[str] | None) -> None:
    path = YPath(nodes=tuple(f"x{name}x" for name in nodes), attribute=None if attribute is None else tuple(attribute))
    if not path.text.endswith(" "):
        assert parse_path(path.text) == path


def test_broken_paths_raise_one_type_of_error() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        text = list("<append=%true>primary://tmp/a\\/b/@x/0{c}[#1:(a,2)]")
        for _ in range(rng.randrange(1, 6)):
            text[rng.randrange(len(text))] = rng.choice(list('/@&*\\[{}]()<>;:#="x%\0é '))
        try:
            found = parse_path("".join(text))
        except PathError:
            continue
        assert parse_path(found.text) == replace(found, attributes={})


def test_names_can_contain_bytes_that_are_not_utf8() -> None:
    path = parse_path(r"//a/\xff\xd0\xb0\/b")
    assert path.name == "\udcffа/b"
    assert path.text == r"//a/\xffа\/b"
    assert parse_path(path.text) == path == parse_path(b"//a/\xff\xd0\xb0\\/b")
