"""The checkpoint server: WebHDFS in the form of Hadoop's Java client, access only with the secret."""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import headrace
from headrace.checkpoint_server import operations, server, tokens
from headrace.checkpoint_server.locations import parse_served, served_url
from headrace.errors import OptionError, UnsupportedError
from headrace.ports import Files, Store
from tests.unit.webhdfs_client import Client


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as opened:
        yield opened


@pytest.fixture
def files(store: Store) -> Files:
    return store.files()


@pytest.fixture(autouse=True)
def _servers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the server that other tests of this process have started: Spark's settings name it."""
    monkeypatch.setattr(server, "_servers", {})
    yield
    server.stop_all()


@pytest.fixture
def client(store: Store) -> Client:
    serving, url = server.serve(store, "/checkpoints/job")
    return Client(serving, url.removeprefix("webhdfs://headrace"))


# -- responses -----------------------------------------------------------------------------------------------


def test_responses_have_a_length_and_no_content_type(client: Client) -> None:
    replies = [
        client.create("/offsets/0", b"v1"),
        client.call("GET", "GETFILESTATUS", "/offsets/0"),
        client.call("GET", "GETFILESTATUS", "/nothing"),
        client.call("GET", "LISTSTATUS", "/offsets"),
        client.call("GET", "OPEN", "/offsets/0"),
        client.open("/offsets/0"),
        client.call("GET", "GETSERVERDEFAULTS", ""),
        client.rename("/offsets/0", "/offsets/1", renameoptions="NONE"),
        client.call("DELETE", "DELETE", "/offsets/1"),
        client.call("PUT", "SETOWNER", "/offsets"),
        client.send("GET", "/", token="wrong"),
        client.post_token("wrong"),
    ]
    assert all("content-type" not in reply.headers for reply in replies)
    assert all(int(reply.headers["content-length"]) == len(reply.body) for reply in replies)


def test_responses_have_the_fields_that_the_client_reads(client: Client) -> None:
    client.create("/offsets/0", b"v1\n{}")
    status = client.call("GET", "GETFILELINKSTATUS", "/offsets/0").json["FileStatus"]
    assert (status["type"], status["length"], status["pathSuffix"], status["permission"]) == ("FILE", 5, "", "644")
    assert abs(status["modificationTime"] / 1000 - time.time()) < 60
    listed = client.call("GET", "LISTSTATUS", "").json["FileStatuses"]["FileStatus"]
    assert [(each["pathSuffix"], each["type"]) for each in listed] == [("offsets", "DIRECTORY")]
    alone = client.call("GET", "LISTSTATUS", "/offsets/0").json["FileStatuses"]["FileStatus"]
    assert [each["pathSuffix"] for each in alone] == [""]
    defaults = client.call("GET", "GETSERVERDEFAULTS", "").json["FsServerDefaults"]
    assert defaults["blockSize"] % defaults["bytesPerChecksum"] == 0
    assert client.call("GET", "GETHOMEDIRECTORY", "").json == {"Path": "/user/headrace"}


def test_a_range_of_a_file_is_read(client: Client) -> None:
    content = bytes(range(256)) * (3 << 12)
    assert client.create("/state/0/0/1.zip", content).status == 201
    assert client.open("/state/0/0/1.zip").body == content
    assert client.open("/state/0/0/1.zip", offset=2_000_000, length=10).body == content[2_000_000:2_000_010]
    assert client.open("/state/0/0/1.zip", offset=len(content)).body == b""
    assert client.open("/state/0/0/1.zip", offset=len(content) + 1).exception == "IOException"
    assert client.open("/state/0/0/1.zip", offset="x").exception == "IOException"
    assert client.open("/nothing").exception == "FileNotFoundException"


def test_unsupported_operations_are_refused(client: Client) -> None:
    assert client.call("PUT", "CREATESYMLINK", "/a").exception == "UnsupportedOperationException"
    assert client.call("GET", "", "/a").exception == "UnsupportedOperationException"


# -- publication ------------------------------------------------------------------------------------------


def test_an_incomplete_upload_is_never_visible(client: Client, files: Files) -> None:
    first = client.call("PUT", "CREATE", "/offsets/.0.tmp")
    with socket.create_connection(("127.0.0.1", client.server.port)) as raw:
        head = f"PUT {client.target(first)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {client.token}\r\n"
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + b"3\r\nv1\n\r\n")
    # The upload may be aborted before or after the next call.
    assert not client.exists("/offsets/.0.tmp")
    client.server.stop()
    assert files.status("/checkpoints/job/offsets/.0.tmp") is None


def test_a_rename_to_an_existing_name_fails_in_the_form_of_each_manager(client: Client) -> None:
    for name in (".a", ".b", "7"):
        client.create(f"/offsets/{name}", name.encode())
    assert client.rename("/offsets/.a", "/offsets/7", renameoptions="NONE").exception == "FileAlreadyExistsException"
    without = client.rename("/offsets/.a", "/offsets/7")
    assert (without.status, without.json) == (200, {"boolean": False})
    assert client.rename("/offsets/.c", "/offsets/8").json == {"boolean": False}
    assert client.rename("/offsets/.c", "/offsets/8", renameoptions="NONE").exception == "FileNotFoundException"
    assert client.rename("/offsets/.a", "/offsets/8", renameoptions="NONE").status == 200
    assert client.rename("/offsets/.b", "/offsets/7", renameoptions="OVERWRITE").status == 200
    assert client.open("/offsets/7").body == b".b"


@pytest.mark.parametrize("options", [{"renameoptions": "NONE"}, {}])
def test_a_repeated_rename_succeeds(client: Client, options: dict[str, str]) -> None:
    client.create("/commits/.1.tmp", b"v1")
    replies = [client.rename("/commits/.1.tmp", "/commits/1", **options) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 200]
    assert {reply.body for reply in replies} == {b"" if options else b'{"boolean": true}'}


def test_a_file_is_overwritten_only_on_request(client: Client) -> None:
    client.create("/a", b"old")
    assert client.create("/a", b"new").exception == "FileAlreadyExistsException"
    assert client.create("/a", b"new", overwrite=True).status == 201
    assert client.open("/a").body == b"new"
    assert client.create("/a/b", b"").exception == "IOException"


def test_deleting_a_missing_file_is_no_error(client: Client) -> None:
    client.create("/offsets/0", b"")
    assert client.call("DELETE", "DELETE", "/offsets/0", recursive="true").json == {"boolean": True}
    assert client.call("DELETE", "DELETE", "/offsets/0", recursive="true").json == {"boolean": False}
    client.create("/a/b", b"")
    assert client.call("DELETE", "DELETE", "/a").exception == "IOException"
    assert client.call("PUT", "MKDIRS", "/c/d").json == {"boolean": True}
    assert client.exists("/c/d")


# -- state ------------------------------------------------------------------------------------------------


def test_a_state_file_is_replaced_atomically(client: Client) -> None:
    client.create("/state/0/1/5.delta", b"old")
    client.create("/state/0/1/.5.delta.tmp", b"new")
    # Hadoop's client overwrites a file by these two requests.
    assert client.call("DELETE", "DELETE", "/state/0/1/5.delta", recursive="false").json == {"boolean": True}
    assert client.open("/state/0/1/5.delta").body == b"old"
    assert client.rename("/state/0/1/.5.delta.tmp", "/state/0/1/5.delta", renameoptions="NONE").status == 200
    assert client.open("/state/0/1/5.delta").body == b"new"
    # Each note is valid for one rename.
    client.create("/state/0/1/.5.delta.tmp2", b"newer")
    refused = client.rename("/state/0/1/.5.delta.tmp2", "/state/0/1/5.delta", renameoptions="NONE")
    assert refused.exception == "FileAlreadyExistsException"


def test_a_rename_without_options_replaces_only_state_files(client: Client) -> None:
    for path in ("/state/0/1/left/5.delta", "/state/0/_metadata/metadata", "/state/0/0/_metadata/schema", "/offsets/5"):
        client.create(path, b"old")
        client.create(f"{path}.tmp", b"new")
        replaced = client.rename(f"{path}.tmp", path).json["boolean"]
        assert replaced == ("left" in path)
        assert client.open(path).body == (b"new" if replaced else b"old")


def test_two_copies_of_one_store_are_not_served_at_one_address(store: Store, tmp_path: Path) -> None:
    server.serve(store, "/checkpoints/job")
    with headrace.open(tmp_path / "store") as again:
        server.serve(again, "/checkpoints/other")
    store.back_up(tmp_path / "backup")
    headrace.restore(tmp_path / "backup", tmp_path / "copy")
    with headrace.open(tmp_path / "copy") as copy, pytest.raises(OptionError, match="another copy of this store"):
        server.serve(copy, "/checkpoints/job")


def test_all_files_of_a_default_store_are_served_when_they_are_requested(store: Store) -> None:
    opened: list[Store] = []

    def open_default() -> Store:
        opened.append(store)
        return store

    serving = server.serve_default("shop", open_default)
    client = Client(serving, "/default")
    assert not opened
    client.create("/tmp/job/offsets/.5.tmp", b"v1")
    assert client.rename("/tmp/job/offsets/.5.tmp", "/tmp/job/offsets/5").json == {"boolean": True}
    assert store.files().read("/tmp/job/offsets/5") == b"v1"
    client.create("/tmp/job/offsets/.5.tmp", b"v2")
    assert client.rename("/tmp/job/offsets/.5.tmp", "/tmp/job/offsets/5").json == {"boolean": False}
    assert len(opened) == 1


def test_a_default_store_without_files_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    def refused(self: object) -> Files:
        return Store.files(cast("Store", self))

    monkeypatch.setattr(type(store), "files", refused)
    client = Client(server.serve_default("shop", lambda: store), "/default")
    assert client.call("GET", "GETFILESTATUS", "/a").exception == "UnsupportedOperationException"


@pytest.mark.parametrize("directory", ["/state/1/2", "/state/1/2/job", "/state/1/2/state/3/4"])
def test_a_log_of_a_checkpoint_at_a_path_like_one_of_state_is_not_replaced(store: Store, directory: str) -> None:
    client = Client(server.serve_default("shop", lambda: store), "/default")
    for name in ("offsets/5", "commits/5", "sources/0/0", "metadata", "state/0/0/_metadata/schema"):
        client.create(f"{directory}/{name}", b"old")
        client.create(f"{directory}/.new", b"new")
        assert client.rename(f"{directory}/.new", f"{directory}/{name}").json == {"boolean": False}, name
    client.create(f"{directory}/state/0/0/SSTs/5.sst", b"old")
    assert client.rename(f"{directory}/.new", f"{directory}/state/0/0/SSTs/5.sst").json == {"boolean": True}


def test_state_files_are_recognised_by_their_path_inside_the_checkpoint(store: Store) -> None:
    serving, url = server.serve(store, "/state/1/2/job")
    client = Client(serving, url.removeprefix("webhdfs://headrace"))
    for path in ("/offsets/.5", "/offsets/5"):
        client.create(path, path.encode())
    assert client.call("DELETE", "DELETE", "/offsets/5", recursive="false").json == {"boolean": True}
    assert not client.exists("/offsets/5")
    client.create("/offsets/5", b"first")
    assert client.rename("/offsets/.5", "/offsets/5").json == {"boolean": False}


def test_a_recursive_deletion_of_a_state_file_is_immediate(client: Client) -> None:
    client.create("/state/0/1/5.delta", b"old")
    assert client.call("DELETE", "DELETE", "/state/0/1/5.delta", recursive="true").json == {"boolean": True}
    assert not client.exists("/state/0/1/5.delta")


def test_temporary_files_are_not_listed_and_then_deleted(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".7.b6c2.tmp", "7", ".hidden"):
        client.create(f"/offsets/{name}", b"")

    def listed() -> list[str]:
        found = client.call("GET", "LISTSTATUS", "/offsets").json["FileStatuses"]["FileStatus"]
        return [each["pathSuffix"] for each in found]

    assert listed() == [".hidden", "7"]
    assert client.exists("/offsets/.7.b6c2.tmp")
    monkeypatch.setattr(operations, "ABANDONED_SECONDS", -1.0)
    assert listed() == [".hidden", "7"]
    assert not client.exists("/offsets/.7.b6c2.tmp")


# -- access -----------------------------------------------------------------------------------------------


def test_requests_without_a_valid_token_are_refused(client: Client) -> None:
    client.create("/offsets/0", b"v1")
    target = f"/webhdfs/v1{client.root}/offsets/0?op=GETFILESTATUS"
    for token in (None, "wrong", client.server.access.refresh_token):
        reply = client.send("GET", target, token=token)
        assert (reply.status, reply.exception) == (401, "AccessControlException")
    for refused in (client.post_token(""), client.post_token("wrong"), client.post_token("é")):
        assert refused.status == 401
    secret = client.server.access.refresh_token
    assert client.post_token(secret, client="somebody").status == 401
    assert client.post_token(secret, grant="password").status == 401


def test_an_access_token_expires(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.call("GET", "GETFILESTATUS", "").status == 404
    monkeypatch.setattr(tokens, "LIFE_SECONDS", -3600)
    short = client.post_token(client.server.access.refresh_token).json["access_token"]
    assert client.send("GET", "/webhdfs/v1/?op=GETFILESTATUS", token=short).status == 401


def test_above_the_limit_the_oldest_token_becomes_invalid(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MOST_TOKENS", 2)
    secret = client.server.access.refresh_token
    given = [client.token, *(client.post_token(secret).json["access_token"] for _ in range(2))]
    statuses = [client.send("GET", "/webhdfs/v1/?op=GETFILESTATUS", token=token).status for token in given]
    assert statuses == [401, 200, 200]


def test_only_served_directories_are_accessible(client: Client, files: Files, store: Store) -> None:
    files.write("/secrets", b"")
    files.write("/checkpoints/job2/offsets/0", b"")
    key = client.root.split("/")[1]
    for path in ("/secrets", "/checkpoints/job2/offsets/0", "/checkpoints/job/../job2/offsets/0", "/checkpoints/jo"):
        reply = client.send("GET", f"/webhdfs/v1/{key}{path}?op=GETFILESTATUS")
        assert reply.status == 403, path
    reply = client.send("GET", f"/webhdfs/v1/{key}/checkpoints?op=LISTSTATUS")
    assert reply.exception == "AccessControlException"
    moved = client.send("PUT", f"/webhdfs/v1{client.root}/a?op=RENAME&destination=/{key}/b&renameoptions=NONE")
    assert moved.exception == "AccessControlException"
    for path in ("/", f"/{key}", f"/{key}/checkpoints"):
        assert client.send("GET", f"/webhdfs/v1{path}?op=GETFILESTATUS").json["FileStatus"]["type"] == "DIRECTORY"
        assert client.send("PUT", f"/webhdfs/v1{path}?op=MKDIRS").json == {"boolean": True}


def test_the_secret_is_not_in_logs_or_representations(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    client.create("/offsets/0", b"")
    client.call("GET", "GETFILESTATUS", "/nothing")
    shown = f"{client.server!r} {client.server.access!r} {caplog.text}"
    assert client.server.access.refresh_token not in shown
    assert client.token not in shown


def test_invalid_requests_get_an_error_and_the_server_continues(client: Client) -> None:
    for target in ("/", "/webhdfs/v1", "/webhdfs/v1?op", "/webhdfs/v2/a?op=OPEN", "/webhdfs/v1/%00?op=GETFILESTATUS"):
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
            assert 400 <= client.send(method, target).status < 500, (method, target)
    target = f"/webhdfs/v1{client.root}/a"
    assert client.send("PUT", f"{target}?op=RENAME").exception == "IOException"
    assert client.send("GET", f"{target}?op=OPEN&data=true&offset=99999999999999999999").status == 403
    for raw in (
        b"GET / HTTP/9.9\r\n\r\n",
        b"\0" * 100,
        b"POST /oauth2/token HTTP/1.1\r\nContent-Length: 99\r\n\r\nshort",
    ):
        with socket.create_connection(("127.0.0.1", client.server.port)) as connection:
            connection.sendall(raw)
    assert client.create("/a", b"").status == 201


# -- the server in its process ----------------------------------------------------------------------------


def test_the_same_directory_has_the_same_address_in_every_process(store: Store, client: Client) -> None:
    again, url = server.serve(store, "/checkpoints/job")
    assert again is client.server
    assert url == served_url(store.id, "/checkpoints/job") == f"webhdfs://headrace{client.root}"
    with headrace.open(Path(store.url.removeprefix("file://"))) as other:
        assert server.serve(other, "/checkpoints/job")[1] == url
    served = parse_served(url)
    assert served is not None
    assert served[1] == "/checkpoints/job"
    assert server.served_files(url) is not None
    assert server.served_files(url + "2") is None


def test_a_file_cannot_be_moved_to_another_store(client: Client, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "other", create=True, synchronous="off") as other:
        _, url = server.serve(other, "/checkpoints/job")
        root = url.removeprefix("webhdfs://headrace")
        client.create("/.a", b"")
        target = f"/webhdfs/v1{client.root}/.a?op=RENAME&destination={root}/a&renameoptions=NONE"
        assert client.send("PUT", target).exception == "IOException"
        assert other.files().status("/checkpoints/job/a") is None


def test_a_new_server_starts_after_stop_all(store: Store, client: Client) -> None:
    before = client.server
    server.stop_all()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", before.port), timeout=5):
        pass
    after, _ = server.serve(store, "/checkpoints/job")
    assert after is not before
    assert after.access.refresh_token != before.access.refresh_token


def _serve_in_child(url: str, parent_port: int, queue: multiprocessing.Queue[bool]) -> None:
    with headrace.open(url) as store:
        own, _ = server.serve(store, "/checkpoints/job")
        queue.put(own.port != parent_port and Client(own, "").token != "")
    server.stop_all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_its_own_server(store: Store, client: Client) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bool] = context.Queue()
    child = context.Process(target=_serve_in_child, args=(store.url, client.server.port, queue))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert client.create("/a", b"").status == 201


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_keep_the_connections_of_its_parent_open(store: Store, client: Client) -> None:
    """Otherwise a client would wait for a response that never comes."""
    holder, other = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=other.recv)
    child.start()
    try:
        client.server.stop()
        client.connection.sock.settimeout(30)
        assert client.connection.sock.recv(1) == b""
    finally:
        holder.send(None)
        child.join(60)
    assert child.exitcode == 0


def test_200_uploads_run_at_the_same_time(client: Client) -> None:
    """Each upload keeps its connection open until its task ends."""
    content = bytes(1000)
    head = (
        f"PUT /webhdfs/v1{client.root}/state/0/{{}}/1.delta?op=CREATE&overwrite=true&data=true HTTP/1.1\r\n"
        f"Host: x\r\nAuthorization: Bearer {client.token}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with contextlib.ExitStack() as stack:
        uploads = []
        for number in range(200):
            uploads.append(stack.enter_context(socket.create_connection(("127.0.0.1", client.server.port), 60)))
            uploads[-1].sendall(head.format(number).encode() + content[:500])
        assert not client.exists("/state/0/0/1.delta")
        for upload in uploads:
            upload.sendall(content[500:])
        assert {upload.recv(100)[:12] for upload in uploads} == {b"HTTP/1.1 201"}
    assert client.open("/state/0/199/1.delta").body == content


_ENDING = """
import sys, http.client
import headrace
from headrace.checkpoint_server import server

with headrace.open(sys.argv[1]) as store:
    serving, _ = server.serve(store, "/checkpoints/job")
connection = http.client.HTTPConnection("127.0.0.1", serving.port)
connection.request("GET", "/webhdfs/v1/?op=GETFILESTATUS")
print(connection.getresponse().status)
"""


def test_a_process_with_a_server_exits_without_output(store: Store) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", _ENDING, store.url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "401\n", "")


def test_an_address_of_another_machine_is_refused(store: Store) -> None:
    with pytest.raises(OptionError, match="cannot be served"):
        server.serve(store, "/checkpoints/job", "192.0.2.77")


def test_a_store_without_files_cannot_keep_a_checkpoint(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "files", Store.files)
    with pytest.raises(UnsupportedError, match="cannot keep a checkpoint"):
        server.serve(store, "/checkpoints/job")
