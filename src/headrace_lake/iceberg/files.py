"""Files of metadata for pyiceberg, which reach the disk before the catalog names them.

pyiceberg's own output does not wait for the disk: after a power failure the catalog could name a file that is empty.
"""

from __future__ import annotations

import os
from io import FileIO as RawFile
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from headrace.errors import StoreDamagedError, UnsupportedError
from headrace_lake.places import sync


def local_path(location: str) -> Path:
    """Return the path of a location.

    Raises:
        UnsupportedError: it is not a file of this machine.
    """
    parts = urlsplit(location)
    if parts.scheme == "":
        return Path(location)
    path = location.partition(":")[2]
    if parts.scheme != "file" or parts.netloc:
        raise UnsupportedError(
            "headrace reads and writes Iceberg tables in local directories only",
            received=f"{parts.scheme}://…",
            valid="file:///directory, or an absolute path",
        )
    return Path(path.removeprefix("//"))


def location_of(path: Path) -> str:
    """Return the location of a path. Readers do not decode it: see `opening.PATH`."""
    return f"file://{path}"


class _SyncedStream(RawFile):
    """A new file, which is on the disk when it is closed."""

    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync(Path(str(self.name)).parent)


class _LocalInput(InputFile):
    def __len__(self) -> int:
        return local_path(self.location).stat().st_size

    def exists(self) -> bool:
        return local_path(self.location).exists()

    def open(self, seekable: bool = True) -> InputStream:
        try:
            return cast(InputStream, local_path(self.location).open("rb"))
        except FileNotFoundError:
            raise StoreDamagedError(
                "a file with metadata of an Iceberg table does not exist",
                received=self.location,
                remedy="read again: a vacuum may have deleted a file of an old version",
            ) from None


class _LocalOutput(OutputFile):
    def __len__(self) -> int:
        return local_path(self.location).stat().st_size

    def exists(self) -> bool:
        return local_path(self.location).exists()

    def to_input_file(self) -> InputFile:
        return _LocalInput(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        path = local_path(self.location)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync(path.parent.parent)
        return cast(OutputStream, _SyncedStream(path, "wb" if overwrite else "xb"))


class SyncedFiles(FileIO):
    """Files of this machine. pyiceberg finds the class by its name."""

    def new_input(self, location: str) -> InputFile:
        return _LocalInput(location)

    def new_output(self, location: str) -> OutputFile:
        return _LocalOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        local_path(location if isinstance(location, str) else location.location).unlink()
