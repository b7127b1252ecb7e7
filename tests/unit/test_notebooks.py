"""The HTML of objects in notebooks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

import headrace
from headrace.ports import Store
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.support import notebooks

NAME = '<b>&"x'


class Texts(HTMLParser):
    """The texts of a page, and its tags."""

    def __init__(self, page: str | None) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        assert page is not None
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine under load needs more than the 2 seconds that a person waits."""
    monkeypatch.setattr(notebooks, "_SECONDS", 60.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as opened:
        yield opened


def test_tables_queues_and_tunnels_are_shown_with_escaped_names(store: Store) -> None:
    table = store.create_table(NAME, {"id": "string", NAME: "long"}, "id")
    tunnel = store.create_tunnel(NAME, NAME, "Stream")
    table.put([{"id": str(number), NAME: number} for number in range(1200)])
    queue = store.create_queue("q", {NAME: "string"}, partitions=30)
    shown = Texts(table._repr_html_())
    assert [f"Table {NAME}", "rows", "1,200"] == shown.texts[:3]
    assert shown.texts[-3:] == [NAME, "long", "–"]
    assert shown.tags <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert Texts(tunnel._repr_html_()).texts[:3] == [f"Tunnel {NAME}", "table", NAME]
    assert "1,200" in Texts(tunnel._repr_html_()).texts
    assert Texts(queue._repr_html_()).texts[-1] == "and 10 more"


def test_what_cannot_be_described_is_left_to_the_text(store: Store) -> None:
    table = store.create_table("t", {"id": "string"}, "id")
    store.drop_table("t")
    assert table._repr_html_() is None


def test_a_store_that_does_not_answer_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", {"id": "string"}, "id")
    tunnel = store.create_tunnel("t", "stats", "Stream")
    queue = store.create_queue("q", {"id": "string"})
    ended = threading.Event()
    monkeypatch.setattr(notebooks, "_SECONDS", 0.05)
    for port in (table, tunnel, queue):
        monkeypatch.setattr(type(port), "describe", lambda self: ended.wait(60))
    late = "The store has not answered within 0.05 seconds."
    assert Texts(table._repr_html_()).texts == ["Table t", late]
    assert Texts(queue._repr_html_()).texts == ["Queue q", late]
    assert Texts(tunnel._repr_html_()).texts == ["Tunnel stats", "table", "t", "kind", "Stream", late]
    ended.set()


def test_long_texts_are_cut() -> None:
    assert Texts(notebooks.facts("t", {"error": "x" * 1000})).texts[-1] == "x" * 300 + "…"
    assert Texts(notebooks.note("y" * 1000)).texts == ["y" * 300 + "…"]


def test_the_state_of_a_stream_is_shown_with_its_error(tmp_path: Path) -> None:
    registry = StreamRegistry(Workspace(tmp_path))
    registry.record_start("s", script="", fingerprint="f", target="t", checkpoint="cp")
    assert "error" not in Texts(registry.get("s")._repr_html_()).texts
    registry.set_ended("s", "failed", "SchemaError: <x>", "add the column")
    assert Texts(registry.get("s")._repr_html_()).texts[-4:] == [
        "error",
        "SchemaError: <x>",
        "remedy",
        "add the column",
    ]


def test_texts_that_utf8_cannot_encode_are_shown() -> None:
    assert "?" in notebooks.facts("\ud800", {"a": 1.5, "b": True})
