"""Unread responses and waiting requests, in an application without a network."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace_ytsaurus.endpoint.app import Bounds, YtsaurusApp
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.context import Answer
from headrace_ytsaurus.endpoint.http.response_buffers import PIECE_BYTES, ResponseBuffers, kept_on_disk, on_disk
from headrace_ytsaurus.endpoint.http.responses import Response
from headrace_ytsaurus.wire.errors import Code, YtError

TOKEN = "only-for-tests"
CONTENT = bytes(range(256)) * 4096


def make_app(root: Path, **bounds: int) -> YtsaurusApp:
    configuration = Configuration.load(root, None, cluster_name="primary", environ={"HEADRACE_YT_TOKEN": TOKEN})
    return YtsaurusApp(configuration, bounds=Bounds(workers=1, **bounds))


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """The event that heavy commands of a test wait for."""
    event = threading.Event()
    yield event
    event.set()


@dataclasses.dataclass
class Client:
    """Sends one request, and reads pieces of the response while ``open`` is set."""

    app: YtsaurusApp
    command: str
    open: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    offered: bool = False
    status: int = 0
    body: bytes = b""
    pieces: int = 0

    async def ask(self) -> Client:
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            self.offered = True
            await self.open.wait()
            self.status = message.get("status", self.status)
            self.body += bytes(message.get("body", b""))
            self.pieces += message["type"] == "http.response.body"

        headers = [(b"authorization", f"OAuth {TOKEN}".encode()), (b"x-yt-parameters", b'{"path": "//tmp"}')]
        scope = {"type": "http", "method": "GET", "path": f"/api/v4/{self.command}", "headers": headers}
        await self.app(scope, receive, send)
        return self


def register(monkeypatch: pytest.MonkeyPatch, name: str, run: Any) -> None:
    known = dataclasses.replace(COMMANDS["read_file"], name=name, run=run)
    monkeypatch.setitem(COMMANDS, name, known)


def test_light_requests_run_while_heavy_ones_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event
) -> None:
    async def drive() -> None:
        waiting = [Client(app, "wait") for _ in range(3)]
        for client in waiting:
            client.open.set()
        tasks = [asyncio.create_task(client.ask()) for client in waiting]
        light = Client(app, "exists")
        light.open.set()
        async with asyncio.timeout(30):
            await light.ask()
        assert json.loads(light.body) == {"value": True}
        assert not any(task.done() for task in tasks)
        release.set()
        assert [client.body for client in await asyncio.gather(*tasks)] == [b"done"] * 3

    def wait(*_: Any) -> Answer:
        release.wait(30)
        return Answer.raw(b"done")

    app = make_app(tmp_path)
    register(monkeypatch, "wait", wait)
    asyncio.run(drive())
    app.close()


def test_unread_responses_are_moved_to_disk_and_then_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is space for one response in memory and one on disk; the third client must retry."""

    async def drive() -> None:
        clients = [Client(app, "much") for _ in range(3)]
        tasks = []
        async with asyncio.timeout(30):
            for number, client in enumerate(clients):
                tasks.append(asyncio.create_task(client.ask()))
                while number < 2 and not client.offered:
                    await asyncio.sleep(0)
            clients[2].open.set()
            assert (await tasks[2]).status == 503
            for client in clients:
                client.open.set()
            done = await asyncio.gather(*tasks[:2])
        assert [client.body for client in done] == [CONTENT, CONTENT]
        assert all(client.pieces > len(CONTENT) // PIECE_BYTES for client in done)
        again = Client(app, "much")
        again.open.set()
        assert (await again.ask()).body == CONTENT

    app = make_app(tmp_path, answer_bytes=len(CONTENT), answer_disk_bytes=len(CONTENT))
    register(monkeypatch, "much", lambda *_: Answer.raw(CONTENT))
    asyncio.run(drive())
    app.close()


def test_small_responses_are_always_accepted() -> None:
    buffers = ResponseBuffers(0, 0)
    place = buffers.place(PIECE_BYTES)
    with pytest.raises(YtError) as found:
        buffers.place(PIECE_BYTES + 1)
    assert found.value.code == Code.REQUEST_QUEUE_FULL
    buffers.free(place, PIECE_BYTES)


def test_responses_on_disk_need_no_memory() -> None:
    buffers = ResponseBuffers(len(CONTENT), len(CONTENT))
    assert buffers.place(len(CONTENT), on_disk=True) == "disk"
    with pytest.raises(YtError):
        buffers.place(len(CONTENT), on_disk=True)
    assert buffers.place(len(CONTENT)) == "memory"


def test_pieces_are_stored_on_disk_until_they_are_read() -> None:
    pieces, length = kept_on_disk([CONTENT, b"", CONTENT[:5]])
    assert length == len(CONTENT) + 5
    assert b"".join(pieces) == CONTENT + CONTENT[:5]

    def failing() -> Iterator[bytes]:
        yield CONTENT
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        kept_on_disk(failing())


def test_a_response_on_disk_is_unchanged() -> None:
    moved = on_disk(Response(200, {"a": "b"}, CONTENT))
    assert moved.stream is not None
    assert (moved.status, moved.headers, moved.body, moved.length) == (200, {"a": "b"}, b"", len(CONTENT))
    assert moved.on_disk
    assert b"".join(moved.stream) == CONTENT
