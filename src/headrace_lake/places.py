"""Where the files of a table are: a directory of this machine, or a prefix of a bucket.

`ObjectPath` has the methods of `pathlib.Path` that this package uses. A bucket has no directories, an object no second
name, and there is nothing to wait for: an object that was written is safe. The functions are for what differs.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from headrace.errors import StoreError
from headrace.support.cached import cached_property

if TYPE_CHECKING:
    from obstore.store import S3Store


@dataclass(frozen=True)
class Bucket:
    """How objects are reached.

    Attributes:
        endpoint: the URL of the service; empty for AWS.
        options: the options of pyarrow's file system with the region and the keys, which messages must not show.
    """

    endpoint: str
    options: Mapping[str, str] = field(repr=False)

    @cached_property
    def files(self) -> fs.S3FileSystem:
        """The file system of pyarrow."""
        address = urlsplit(self.endpoint)
        return fs.S3FileSystem(
            endpoint_override=address.netloc or None,
            scheme=address.scheme or "https",
            connect_timeout=10,
            request_timeout=60,
            **self.options,
        )

    def objects(self, name: str) -> S3Store:
        """Return a bucket for conditional puts, which the file system of pyarrow does not have."""
        from obstore.store import S3Store

        return S3Store(name, config=self.storage_options)  # type: ignore[arg-type]

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of deltalake, and of obstore."""
        names = {
            "access_key": "aws_access_key_id",
            "secret_key": "aws_secret_access_key",
            "session_token": "aws_session_token",
            "region": "aws_region",
        }
        found = {names[name]: value for name, value in self.options.items()}
        if self.endpoint:
            found["aws_endpoint"] = self.endpoint
            found["aws_allow_http"] = "true"
        return found


class Status(NamedTuple):
    """The size of an object in bytes, and when it was written, in seconds since 1970."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True)
class ObjectPath:
    """An object, or a prefix of objects.

    Attributes:
        key: the bucket and the name of the object.
    """

    bucket: Bucket
    key: str

    def __truediv__(self, name: str | os.PathLike[str]) -> ObjectPath:
        return ObjectPath(
            self.bucket, "/".join(part for part in (self.key, *str(name).split("/")) if part not in ("", "."))
        )

    def __str__(self) -> str:
        return f"s3://{self.key}"

    @property
    def name(self) -> str:
        """The last part of the name."""
        return self.key.rpartition("/")[2]

    def as_uri(self) -> str:
        """Return the URL for deltalake."""
        return f"s3://{quote(self.key)}"

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: objects need no directory."""

    def exists(self) -> bool:
        """Return whether there is an object of this name, or below it."""
        return bool(self._information().type != fs.FileType.NotFound)

    def is_dir(self) -> bool:
        """Return whether there are objects below this name."""
        return bool(self._information().type == fs.FileType.Directory)

    def stat(self) -> Status:
        """Return the status of an object; raise `FileNotFoundError` if there is none."""
        found = self._information()
        if found.type != fs.FileType.File:
            raise FileNotFoundError(str(self))
        return Status(found.size, found.mtime.timestamp())

    def _information(self) -> fs.FileInfo:
        return reached(lambda: self.bucket.files.get_file_info(self.key))

    def iterdir(self) -> Iterator[ObjectPath]:
        """Yield the objects and prefixes directly below this name."""
        for each in self._below(recursive=False):
            yield ObjectPath(self.bucket, each.path)

    def _below(self, *, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.key, recursive=recursive, allow_not_found=True)
        found: list[fs.FileInfo] = reached(lambda: self.bucket.files.get_file_info(selector))
        return found

    def read_text(self, encoding: str) -> str:
        """Return the content of an object; raise `FileNotFoundError` if there is none."""
        with open_input(self) as file:
            return str(file.read(), encoding)

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Delete an object."""
        try:
            reached(lambda: self.bucket.files.delete_file(self.key))
        except FileNotFoundError:
            if not missing_ok:
                raise


Place: TypeAlias = Path | ObjectPath


def reached(call: Callable[[], Any]) -> Any:
    """Return the result of a call to a service.

    Raises:
        FileNotFoundError: there is no such object.
        StoreError: the service cannot be reached, or refuses the request.
    """
    try:
        return call()
    except FileNotFoundError:
        raise
    except OSError as error:
        # The first line has neither keys nor the body of the answer.
        reason = str(error).partition("\n")[0][:300]
        raise StoreError("the object store rejects a request, or cannot be reached", received=reason) from None


def moment_of(place: Place) -> float:
    """Return the time between two looks for changes, in seconds: each look at a bucket is some requests."""
    return 0.02 if isinstance(place, Path) else 1.0


def storage_options(place: Place) -> dict[str, str] | None:
    """Return the options of deltalake for a table."""
    return None if isinstance(place, Path) else place.bucket.storage_options


def open_input(place: Place) -> pa.NativeFile:
    """Open a file for reading; raise `FileNotFoundError` if there is none."""
    if isinstance(place, Path):
        return pa.OSFile(str(place))
    return reached(lambda: place.bucket.files.open_input_file(place.key))


def write_new(place: Place, write: Callable[[Any], None]) -> None:
    """Write a new file, and wait until it is safe."""
    if isinstance(place, Path):
        with place.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        return

    def put() -> None:
        with place.bucket.files.open_output_stream(place.key) as stream:
            write(stream)

    reached(put)


def file_identity(place: Place) -> object:
    """Return a value that no other file of this name has had; None if there is no file."""
    try:
        return identity_of(place.stat())
    except FileNotFoundError:
        return None


def identity_of(status: os.stat_result | Status) -> object:
    """Return the identity of a file with a status: an object has its size, and when it was written."""
    return status if isinstance(status, Status) else (status.st_ino, status.st_mtime_ns, status.st_size)


def create(place: Place, content: bytes) -> None:
    """Create a file with a content that no other file has, of which readers see all or nothing, and wait until it is
    safe.

    Raises:
        FileExistsError: there is a file of the name with another content, which is unchanged.
        OSError, StoreError: it is not certain whether the file was created.
    """
    try:
        _create(place, content)
    except FileExistsError:
        # A client repeats a request whose answer is lost: the file may be this one.
        if place.read_text("utf-8") != content.decode():
            raise


def _create(place: Place, content: bytes) -> None:
    if isinstance(place, Path):
        draft = place.with_name(f".{place.name}.{uuid.uuid4()}.tmp")
        try:
            write_new(draft, lambda file: file.write(content))
            # Other than a rename, a second name replaces no file.
            os.link(draft, place)
        finally:
            draft.unlink(missing_ok=True)
        return
    from obstore.exceptions import AlreadyExistsError, BaseError

    bucket, _, key = place.key.partition("/")
    try:
        place.bucket.objects(bucket).put(key, content, mode="create")
    except AlreadyExistsError:
        raise FileExistsError(str(place)) from None
    except BaseError as error:
        reason = str(error).partition("\n")[0][:300]
        raise StoreError("the object store rejects a request, or cannot be reached", received=reason) from None


def sync(place: Place) -> None:
    """Wait until a file, or the entries of a directory, are on the disk."""
    if isinstance(place, Path):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def second_name(source: Place, target: Place) -> None:
    """Give a file a second name, or copy it where there are no such names."""
    if isinstance(source, ObjectPath) and isinstance(target, ObjectPath):
        reached(lambda: source.bucket.files.copy_file(source.key, target.key))
        return
    assert isinstance(source, Path)
    assert isinstance(target, Path)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync(target)


def files_below(place: Place, pattern: str) -> dict[str, float]:
    """Return the files whose names below a directory have a form, with as many parts, and when they were written."""
    if isinstance(place, Path):
        written = {}
        for path in place.glob(pattern):
            # Another process may delete a file meanwhile.
            with suppress(FileNotFoundError):
                written[path.relative_to(place).as_posix()] = path.stat().st_mtime
        return written
    found = {each.path.removeprefix(f"{place.key}/"): each for each in place._below(recursive="/" in pattern)}
    return {
        name: each.mtime.timestamp()
        for name, each in found.items()
        if each.type == fs.FileType.File
        and name.count("/") == pattern.count("/")
        and fnmatch.fnmatchcase(name, pattern)
    }


def directories_in(place: Place) -> list[str]:
    """Return the names of the directories directly below a directory; none if it does not exist."""
    if isinstance(place, Path):
        try:
            return [each.name for each in os.scandir(place) if each.is_dir()]
        except FileNotFoundError:
            return []
    return [each.base_name for each in place._below(recursive=False) if each.type == fs.FileType.Directory]


def remove_tree(place: Place) -> None:
    """Delete all files below a directory, and the directory."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        reached(lambda: place.bucket.files.delete_dir(place.key))
