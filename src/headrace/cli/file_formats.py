"""Files with rows: their formats, their compression, and how they are opened."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import secrets
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from headrace.cli.arguments import FORMAT_NAMES
from headrace.errors import OptionError

STANDARD = "-"
"""Standard input or output."""
SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
}
ARROW_STREAM_SUFFIX = ".arrows"
TABS_SUFFIX = ".tsv"
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""The suffixes of compressed files, with pyarrow's names of the compressions."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"\x04\x22\x4d\x18": "lz4"}
_BINARY_FORMATS = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_UNREADABLE = {
    b"PK\x03\x04": ("a ZIP archive", "unpack it: unzip -p {} | headrace load - --format csv …"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it: xz -dc {} | headrace load - --format csv …"),
    b"\xff\xfe": ("a text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {} | headrace load - --format csv …"),
    b"\xfe\xff": ("a text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8 {} | headrace load - --format csv …"),
}
_BUFFER_BYTES = 1 << 20


@dataclass
class InputFile:
    """An open file.

    Attributes:
        path: the path as it was given.
        file: the decompressed contents.
        size: the size of the file in bytes; None for standard input.
    """

    path: str
    file: BinaryIO
    size: int | None
    _raw: BinaryIO

    def position(self) -> int:
        """Return how many bytes of the file were read, before decompression."""
        return 0 if self.size is None else self._raw.tell()

    def beginning(self, size: int) -> bytes:
        """Return the first bytes of the contents; they can be read again.

        Raises:
            OptionError: the file cannot be read.
        """
        place = self.file.tell() if self.file.seekable() else None
        try:
            start = self.file.read(size)
        except OSError as error:
            # Compressed contents can be damaged.
            raise OptionError(f"cannot read the file: {reason(error)}", received=self.path) from error
        if place is not None:
            self.file.seek(place)
        else:
            self.file = cast(BinaryIO, io.BufferedReader(_Continued(start, self.file), _BUFFER_BYTES))
        return start

    def seekable(self) -> BinaryIO:
        """Return the contents as a file that can be read from any place: compressed contents as a temporary file."""
        if not self.file.seekable():
            # Removed by the operating system when it is closed, also at the end of the process.
            copy = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
            shutil.copyfileobj(self.file, copy, _BUFFER_BYTES)
            copy.seek(0)
            self.file = copy
        return self.file


class _Continued(io.RawIOBase):
    """Bytes that were read from a file, and then the rest of the file."""

    def __init__(self, start: bytes, rest: BinaryIO) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._start.read(len(buffer)) or self._rest.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def paths_of(files: Sequence[str]) -> list[str]:
    """Return the paths of files and patterns such as ``2026-*.csv``, whose matches are sorted.

    Raises:
        OptionError: a pattern matches no file, or the same file is given twice.
    """
    paths: list[str] = []
    for file in files:
        if file == STANDARD or not glob.has_magic(file) or Path(file).exists():
            paths.append(file)
            continue
        # `Path.glob` takes no absolute patterns.
        matches = sorted(glob.glob(file, recursive=True))  # noqa: PTH207
        if not matches:
            raise OptionError("no file matches the pattern", received=file)
        paths += matches
    if len(set(paths)) < len(paths):
        repeated = next(path for path in paths if paths.count(path) > 1)
        raise OptionError("a file is given twice", received=repeated)
    return paths


def format_of(path: str, given: str | None = None, *, beginning: bytes = b"") -> str:
    """Return the format of a file: the given one, or that of its suffix, or of its first bytes.

    Standard input without a known beginning is JSON lines.

    Raises:
        OptionError: the suffix is unknown.
    """
    if given is not None:
        return given
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    if suffixes and suffixes[-1] in SUFFIXES:
        return SUFFIXES[suffixes[-1]]
    for magic, name in _BINARY_FORMATS.items():
        if beginning.startswith(magic):
            return name
    if path == STANDARD:
        return "jsonl"
    raise OptionError(
        "unknown suffix of the file",
        received=path,
        valid=[*SUFFIXES, *(f"the same with {suffix}" for suffix in COMPRESSIONS)],
        remedy=f"give --format with one of {', '.join(FORMAT_NAMES)}",
    )


@contextlib.contextmanager
def open_input(path: str) -> Iterator[InputFile]:
    """Open a file, or standard input, for reading. Compressed contents are recognised by their first bytes.

    Raises:
        OptionError: the file cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        raw: io.BufferedReader
        if path == STANDARD:
            given = sys.stdin.buffer
            raw = given if isinstance(given, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, given))
        else:
            try:
                raw = stack.enter_context(Path(path).open("rb"))
                raw.peek(1)
            except (OSError, ValueError) as error:
                raise OptionError(f"cannot read the file: {reason(error)}", received=path) from error
        start = raw.peek(8)
        compression = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
        contents: BinaryIO = raw
        if compression is not None:
            stream = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), compression)
            contents = cast(BinaryIO, io.BufferedReader(stream, _BUFFER_BYTES))
        for magic, (problem, remedy) in _UNREADABLE.items():
            if start.startswith(magic):
                raise OptionError(f"the file is {problem}", received=path, remedy=remedy.format(shlex.quote(path)))
        yield InputFile(path, contents, None if path == STANDARD else os.fstat(raw.fileno()).st_size, raw)


@contextlib.contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    """Open a file, or standard output, for writing. The suffix chooses a compression.

    The file gets its name when the block ends without an error: until then it has another name in the same directory.

    Raises:
        OptionError: the file cannot be written.
    """
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    compression = COMPRESSIONS.get(target.suffix.lower())
    try:
        file = temporary.open("xb")
    except (OSError, ValueError) as error:
        raise OptionError(f"cannot write the file: {reason(error)}", received=path) from error
    try:
        with file:
            if compression is None:
                yield file
            else:
                # Closing the stream would also close the file.
                with pa.CompressedOutputStream(pa.PythonFile(_Open(file), mode="w"), compression) as stream:
                    yield cast(BinaryIO, stream)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be opened."""
    # A path with the character NUL, or a lone surrogate, is a ValueError.
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it has an invalid name"


class _Open(io.RawIOBase):
    """A file that stays open when its user closes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._file.write(data)
