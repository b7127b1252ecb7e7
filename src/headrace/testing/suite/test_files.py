"""Promises of stores with files: a file is complete or absent, and one of several concurrent moves succeeds."""

from __future__ import annotations

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError
from headrace.ports import Files, Store
from headrace.ports.files import parent_path
from headrace.testing import Place

pytestmark = pytest.mark.needs("files")


@pytest.fixture
def files(store: Store) -> Files:
    """The files of an empty store, with a directory for the test."""
    found = store.files()
    found.make_directory("/work")
    return found


def names(files: Files, path: str) -> list[str]:
    return [status.name for status in files.list(path)]


def test_a_file_exists_after_its_commit(files: Files) -> None:
    with files.create("/work/a/b") as upload:
        upload.write(b"one, ")
        upload.write(b"two")
        assert files.status("/work/a/b") is None
        status = upload.commit()
    assert status.size == 8
    assert files.status("/work/a/b") == status
    assert files.read("/work/a/b") == b"one, two"
    assert names(files, "/work") == ["a"]


def test_an_aborted_upload_leaves_no_file(files: Files) -> None:
    def fail() -> None:
        with files.create("/work/a") as upload:
            upload.write(b"x" * (6 << 20))
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert files.list("/work") == []


def test_any_range_of_a_large_file_can_be_read(files: Files) -> None:
    content = bytes(range(256)) * (9 << 12) + b"end"
    assert files.write("/work/large", content).size == len(content)
    for offset, length in [(0, None), (1 << 20, 1 << 20), ((1 << 20) - 1, 2), (5_000_000, None), (len(content), None)]:
        found = files.open_read("/work/large", offset, length)
        part = b"".join(found.parts)
        assert part == content[offset : None if length is None else offset + length]
        assert found.size == len(part)
    with pytest.raises(OptionError, match="offset"):
        files.open_read("/work/large", len(content) + 1)


def test_a_file_can_be_empty(files: Files) -> None:
    files.write("/work/empty", b"")
    assert files.read("/work/empty") == b""


def test_an_existing_file_is_replaced_only_on_request(files: Files) -> None:
    files.write("/work/a", b"old")
    late = files.create("/work/b")
    with pytest.raises(AlreadyExistsError):
        files.create("/work/a")
    files.write("/work/a", b"new", overwrite=True)
    assert files.read("/work/a") == b"new"
    files.write("/work/b", b"first")
    with pytest.raises(AlreadyExistsError):
        late.commit()
    late.abort()
    assert files.read("/work/b") == b"first"
    with pytest.raises(AlreadyExistsError):
        files.write("/work", b"", overwrite=True)


def test_a_file_cannot_have_children(files: Files) -> None:
    files.write("/work/a", b"")
    with pytest.raises(OptionError):
        files.make_directory("/work/a/b")
    with pytest.raises(OptionError):
        files.write("/work/a/b", b"")


def test_directories_are_removed_with_their_content_only_on_request(files: Files) -> None:
    files.write("/work/a/b/c", b"c")
    with pytest.raises(OptionError, match="not empty"):
        files.remove("/work/a")
    assert files.remove("/work/a", recursive=True)
    assert files.status("/work/a/b/c") is None
    assert not files.remove("/work/a")
    files.make_directory("/work/d")
    assert files.remove("/work/d")


def test_a_move_replaces_an_existing_file_only_on_request(files: Files) -> None:
    files.write("/work/a", b"a")
    files.write("/work/b", b"b")
    with pytest.raises(AlreadyExistsError):
        files.move("/work/a", "/work/b")
    assert files.read("/work/b") == b"b"
    files.move("/work/a", "/work/b", overwrite=True)
    assert files.read("/work/b") == b"a"
    assert names(files, "/work") == ["b"]
    with pytest.raises(NotFoundError):
        files.move("/work/c", "/work/d")
    with pytest.raises(NotFoundError):
        files.move("/work/b", "/work/nowhere/b")


def test_a_move_can_be_repeated_after_its_response_was_lost(files: Files) -> None:
    files.write("/work/.7.tmp", b"mine")
    files.write("/work/.8.tmp", b"theirs")
    files.move("/work/.7.tmp", "/work/7")
    files.move("/work/.7.tmp", "/work/7")
    assert files.read("/work/7") == b"mine"
    # Only for the client that made the move.
    with pytest.raises(AlreadyExistsError):
        files.move("/work/.8.tmp", "/work/7")
    files.move("/work/.8.tmp", "/work/7", overwrite=True)
    with pytest.raises(NotFoundError):
        files.move("/work/.7.tmp", "/work/7")
    files.move("/work/.8.tmp", "/work/7", overwrite=True)
    assert files.read("/work/7") == b"theirs"


def test_a_directory_moves_with_its_content(files: Files) -> None:
    files.write("/work/a/b/c", b"c")
    files.move("/work/a", "/work/d")
    assert files.read("/work/d/b/c") == b"c"
    assert files.status("/work/a") is None
    with pytest.raises(OptionError):
        files.move("/work/d", "/work/d/b/d")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_move_to_its_own_path_or_of_the_root_is_refused(files: Files, overwrite: bool) -> None:
    files.write("/work/a/b", b"b")
    for source, destination in [("/work/a/b", "//work/a/b/"), ("/work/a", "/work/a"), ("/", "/work/d"), ("/work", "/")]:
        with pytest.raises(OptionError, match="moved"):
            files.move(source, destination, overwrite=overwrite)
    assert files.read("/work/a/b") == b"b"


def test_one_of_many_concurrent_moves_to_a_path_succeeds(place: Place, store: Store) -> None:

    def contend(writer: int) -> list[int]:
        files, won = place.open().files(), []
        for number in range(20):
            files.write(f"/race/.{number}.{writer}", str(writer).encode())
            try:
                files.move(f"/race/.{number}.{writer}", f"/race/{number}")
                won.append(number)
            except AlreadyExistsError:
                files.remove(f"/race/.{number}.{writer}")
        return won

    with ThreadPoolExecutor(4) as threads:
        wins = list(threads.map(contend, range(4)))
    assert sorted(number for won in wins for number in won) == list(range(20))
    files = store.files()
    assert all(files.read(f"/race/{number}") == str(writer).encode() for writer in range(4) for number in wins[writer])
    assert len(files.list("/race")) == 20


def test_a_file_exists_at_every_moment_while_it_is_replaced(place: Place, store: Store) -> None:
    store.files().write("/work/state", b"0" * 1000)

    def replace(_: int) -> None:
        files = place.open().files()
        for number in range(40):
            files.write(f"/work/.{number}", str(number % 10).encode() * 1000)
            files.move(f"/work/.{number}", "/work/state", overwrite=True)

    with ThreadPoolExecutor(1) as threads:
        replacing = threads.map(replace, [0])
        seen = [store.files().read("/work/state") for _ in range(40)]
        list(replacing)
    assert all(content is not None and len(set(content)) == 1 and len(content) == 1000 for content in seen)


def test_invalid_paths_are_refused(files: Files) -> None:
    for path in ("work", "", "/work/../other", "/work/./a", "/wo\0rk"):
        with pytest.raises(OptionError):
            files.status(path)
    files.write("//work///a/", b"a")
    assert files.read("/work/a") == b"a"
    root = files.status("/")
    assert root is not None
    assert root.directory
    with pytest.raises(OptionError):
        files.remove("/", recursive=True)


PATHS = st.sampled_from([f"/{a}" for a in "ab"] + [f"/{a}/{b}" for a in "ab" for b in "ab"] + ["/a/a/a", "/b/a/b"])


class _Model(RuleBasedStateMachine):
    """Files compared with a dict: path → bytes of a file, or None for a directory."""

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = replace(self.place, directory=self.directory).open()
        self.files = self.store.files()
        self.known: dict[str, bytes | None] = {}

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def parents(self, path: str) -> list[str]:
        above = parent_path(path)
        return [] if above == "/" else [*self.parents(above), above]

    def expect(self, refused: bool, call: Any) -> bool:
        """Make a call, and return whether it was accepted."""
        try:
            call()
        except (AlreadyExistsError, NotFoundError, OptionError):
            assert refused
            return False
        assert not refused
        return True

    @rule(path=PATHS, content=st.binary(max_size=8), overwrite=st.booleans())
    def write(self, path: str, content: bytes, overwrite: bool) -> None:
        in_the_way = any(self.known.get(above) is not None for above in self.parents(path))
        refused = in_the_way or (path in self.known and (self.known[path] is None or not overwrite))
        if self.expect(refused, lambda: self.files.write(path, content, overwrite=overwrite)):
            self.known |= dict.fromkeys(self.parents(path)) | {path: content}

    @rule(path=PATHS)
    def make_directory(self, path: str) -> None:
        wanted = [*self.parents(path), path]
        refused = any(self.known.get(each) is not None for each in wanted)
        if self.expect(refused, lambda: self.files.make_directory(path)):
            self.known |= dict.fromkeys(wanted)

    @rule(path=PATHS, recursive=st.booleans())
    def remove(self, path: str, recursive: bool) -> None:
        below = [each for each in self.known if each.startswith(f"{path}/")]
        if self.expect(bool(below) and not recursive, lambda: self.files.remove(path, recursive=recursive)):
            for each in (*below, path):
                self.known.pop(each, None)

    @rule(source=PATHS, destination=PATHS, overwrite=st.booleans())
    def move(self, source: str, destination: str, overwrite: bool) -> None:
        if source not in self.known and destination in self.known:
            return  # The call may repeat an earlier one.
        above = parent_path(destination)
        refused = (
            source not in self.known
            or f"{destination}/".startswith(f"{source}/")
            or (destination in self.known and (self.known[destination] is None or not overwrite))
            or (above != "/" and (above not in self.known or self.known[above] is not None))
        )
        if self.expect(refused, lambda: self.files.move(source, destination, overwrite=overwrite)):
            for each in [each for each in self.known if f"{each}/".startswith(f"{source}/")]:
                self.known[destination + each.removeprefix(source)] = self.known.pop(each)

    @invariant()
    def same(self) -> None:
        found: dict[str, bytes | None] = {}
        directories = ["/"]
        while directories:
            for status in self.files.list(directories.pop()):
                found[status.path] = None if status.directory else self.files.read(status.path)
                if status.directory:
                    directories.append(status.path)
        assert found == self.known


def test_files_follow_the_model_of_a_dict(place: Place, store: Store) -> None:
    model = type("Model", (_Model,), {"place": place})
    examples = settings(max_examples=place.commits(25), stateful_step_count=20, deadline=None)
    run_state_machine_as_test(model, settings=examples)
