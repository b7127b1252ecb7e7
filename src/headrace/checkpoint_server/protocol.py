"""WebHDFS as Hadoop's Java client speaks it: what requests say, and what answers look like. Values in, values out.

Two things of that client decide the shape of every answer. It fails on an answer in JSON that has a ``Content-Type``,
because a part of its JSON library is not in Hadoop's client jars; without the header it does not look. And it keeps a
connection only if an answer without a body says ``Content-Length: 0``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, UnsupportedError
from headrace.ports import FileStatus

ROOT = "/webhdfs/v1"
# The client asks twice to write or read, first without data: here is the answer, there is the place.
SECOND_STEP = "data=true"
_BLOCK_BYTES = 128 << 20


@dataclass(frozen=True)
class Request:
    """One request: ``GET OPEN /path``, and its parameters by name in lower case, as the client sends them."""

    operation: str
    path: str
    parameters: Mapping[str, str]

    def flag(self, name: str) -> bool:
        return self.parameters.get(name, "").lower() == "true"

    def number(self, name: str) -> int | None:
        """Return a parameter that is a number; None if it is not there.

        Raises:
            OptionError: it is not a whole number.
        """
        text = self.parameters.get(name)
        if text is None or text == "null":
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise OptionError(f"parameter {name} cannot be read", received=repr(text), valid="a whole number")
        return int(text)

    @property
    def has_data(self) -> bool:
        """Whether this is the second step of a CREATE or OPEN."""
        return self.flag("data")


@dataclass(frozen=True)
class Answer:
    """An answer whose body is at hand."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_request(method: str, raw_path: str, query: str) -> Request | None:
    """Read a request; None if it is none of this protocol.

    Args:
        raw_path: the path as it was sent, percent-encoded.
    """
    path = unquote(raw_path)
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        return None
    parameters = {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}
    operation = f"{method} {parameters.pop('op', '').upper()}"
    return Request(operation, path.removeprefix(ROOT) or "/", parameters)


# -- answers ----------------------------------------------------------------------------------------------


def json_answer(value: Mapping[str, Any], status: int = 200) -> Answer:
    return Answer(status, json.dumps(value).encode())


def boolean(value: bool) -> Answer:
    return json_answer({"boolean": value})


def redirect(scheme: str, host: str, raw_path: str, query: str) -> Answer:
    """Return the answer to the first step of a CREATE or OPEN: to come again, to the same place."""
    return Answer(307, headers={"location": f"{scheme}://{host}{raw_path}?{query}&{SECOND_STEP}"})


def file_status(status: FileStatus) -> Answer:
    return json_answer({"FileStatus": _fields(status, "")})


def file_statuses(directory: str, found: Sequence[FileStatus]) -> Answer:
    """Return a listing; that of a file is the file alone, without a name."""
    fields = [_fields(status, "" if status.path == directory else status.name) for status in found]
    return json_answer({"FileStatuses": {"FileStatus": fields}})


def _fields(status: FileStatus, suffix: str) -> dict[str, Any]:
    modified = int(status.modified * 1000)
    return {
        "accessTime": modified,
        "blockSize": 0 if status.directory else _BLOCK_BYTES,
        "childrenNum": 0,
        "fileId": 0,
        "group": "headrace",
        "length": status.size,
        "modificationTime": modified,
        "owner": "headrace",
        "pathSuffix": suffix,
        "permission": "755" if status.directory else "644",
        "replication": 0 if status.directory else 1,
        "storagePolicy": 0,
        "type": "DIRECTORY" if status.directory else "FILE",
    }


SERVER_DEFAULTS = json_answer(
    {
        "FsServerDefaults": {
            # A block must be a whole number of checksums.
            "blockSize": _BLOCK_BYTES,
            "bytesPerChecksum": 512,
            "checksumType": 2,
            "defaultStoragePolicyId": 0,
            "encryptDataTransfer": False,
            "fileBufferSize": 65536,
            "keyProviderUri": "",
            "replication": 1,
            "trashInterval": 0,
            "writePacketSize": 65536,
        }
    }
)
HOME_DIRECTORY = json_answer({"Path": "/user/headrace"})


# -- errors -----------------------------------------------------------------------------------------------


def remote_exception(status: int, java_class: str, message: str) -> Answer:
    """Return an answer that the client turns into an exception of Java."""
    name = java_class.rpartition(".")[2]
    return json_answer(
        {"RemoteException": {"exception": name, "javaClassName": java_class, "message": message}}, status
    )


def access_denied(status: int, message: str) -> Answer:
    """Return the answer to a caller without the secret (401), or who asks for what is not served (403)."""
    return remote_exception(status, "org.apache.hadoop.security.AccessControlException", message)


def told(error: Exception) -> Answer:
    """Return what a client is told of an error."""
    match error:
        case NotFoundError():
            return remote_exception(404, "java.io.FileNotFoundException", str(error))
        case AlreadyExistsError():
            return remote_exception(403, "org.apache.hadoop.fs.FileAlreadyExistsException", str(error))
        case UnsupportedError():
            return remote_exception(400, "java.lang.UnsupportedOperationException", str(error))
        case OptionError():
            return remote_exception(403, "java.io.IOException", str(error))
        case HeadraceError():
            return remote_exception(500, "java.io.IOException", str(error))
    return remote_exception(500, "java.io.IOException", "the server failed; its log says why")
