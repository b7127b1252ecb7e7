"""The servers in the documents start as the documents write them, and their clients run beside them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headrace
from tests.documents import claimed, run_code, run_shell

HERE = "tests/interop/test_document_servers.py"


def code(document: str, *languages: str) -> list[str]:
    """Return the blocks of a document that this file runs."""
    return [block.text for block in claimed(document, HERE) if block.language in languages]


@contextmanager
def served(block: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Run a block's variables and its server; yield the address of the server and the lines after it.

    The server gets a free port instead of the written one.
    """
    lines = block.splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith(("headrace serve", "headrace ui")))
    for line in lines[:place]:
        words = shlex.split(line, comments=True)
        assert words[0] in ("pip", "export"), line
        for name, _, value in [word.partition("=") for word in words[1:] if words[0] == "export"]:
            monkeypatch.setenv(name, value)
    words = shlex.split(lines[place], comments=True)
    words = ["0" if word.isdigit() else word for word in words] + ["--json"]
    words += ["--port", "0"] if words[1] == "ui" else []
    command = [sys.executable, "-m", "headrace.cli.main", *words[1:]]
    process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield ready.get("endpoint") or ready["address"], lines[place + 1 :]
    finally:
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout is not None
        process.stdout.close()


def own_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("HEADRACE_", "YT_"))}


def run_beside(lines: list[str], written: str, address: str, directory: Path) -> str:
    """Run the commands after that of a server; return what they print."""
    script = "\n".join(lines).replace(written, address)
    assert address in script
    return run_shell(script, directory, own_environment())


def test_the_endpoint_of_tablestore_starts_with_a_key_and_with_a_file_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = code("docs/tablestore.md", "sh")
    (keys,) = code("docs/tablestore.md", "toml")
    with served(server, tmp_path, monkeypatch) as (address, others):
        run_beside(others, "http://127.0.0.1:8484", address, tmp_path)
        with headrace.open(f"tablestore+{address}/shop") as store:
            assert store.tables() == []
    (tmp_path / "keys.toml").write_text(keys)
    (tmp_path / "keys.toml").chmod(0o600)
    with served("headrace serve --tablestore 8484 --config keys.toml --root instances", tmp_path, monkeypatch) as (
        address,
        _,
    ):
        url = f"tablestore+{address}/shop-test"
        with headrace.open(url, access_key_id="tests", access_key_secret="another-secret") as store:
            assert store.tables() == []


def test_the_page_of_the_endpoint_of_ytsaurus_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (server,) = code("docs/ytsaurus-endpoint.md", "sh")
    (tokens,) = code("docs/ytsaurus-endpoint.md", "toml")
    client, directory = code("docs/ytsaurus-endpoint.md", "python")
    with served(server, tmp_path, monkeypatch) as (address, others):
        assert "clicks" in run_beside(others, "http://127.0.0.1:8585", address, tmp_path)
        run_code(client.replace("http://127.0.0.1:8585", address), capsys)
    monkeypatch.chdir(tmp_path)
    printed = run_code(directory, capsys)
    assert printed[0].startswith("['//home/headrace/clicks', '//tmp/clicks'] [{'data': b'one'")
    assert printed[1:] == ["{0: 1, 1: 0}"]
    (tmp_path / "tokens.toml").write_text(tokens)
    (tmp_path / "tokens.toml").chmod(0o600)
    command = "headrace serve --ytsaurus 8585 --config tokens.toml --root cluster"
    with (
        served(command, tmp_path, monkeypatch) as (address, _),
        headrace.open(f"yt+{address}", token="another-secret") as store,
    ):
        assert store.queue("//tmp/clicks").bounds()[0].rows == 1


def test_the_server_of_the_page_on_ytsaurus_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (server,) = code("docs/ytsaurus.md", "sh")
    with served(server, tmp_path, monkeypatch) as (address, _), headrace.open(f"yt+{address}") as store:
        assert store.queues() == []


def test_the_web_page_starts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headrace.open(tmp_path / "shop", create=True).close()
    monkeypatch.delenv("HEADRACE_UI_PASSWORD", raising=False)
    plain, protected = code("docs/ui.md", "sh")
    with served(plain, tmp_path, monkeypatch) as (address, _), urllib.request.urlopen(address) as page:
        assert b"headrace" in page.read()
    (tmp_path / "password").write_text("any-secret")
    block = protected.replace("/run/secrets/headrace-ui", str(tmp_path / "password"))
    assert block != protected
    with served(block, tmp_path, monkeypatch) as (address, _):
        request = urllib.request.Request(
            f"http://127.0.0.1:{address.rpartition(':')[2]}/", headers={"Authorization": "Bearer any-secret"}
        )
        with urllib.request.urlopen(request) as page:
            assert page.status == 200
