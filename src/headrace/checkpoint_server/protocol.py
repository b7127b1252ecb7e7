"""Requests and responses of WebHDFS, as Hadoop's Java client sends and expects them. Pure functions.

Two properties of the client determine the form of every response. It fails on JSON with a ``Content-Type``, because a
part of its JSON library is not in Hadoop's client jars; without the header it does not look for that part. It keeps a
connection open only if a response without a body has ``Content-Length: 0``.
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
# The client sends CREATE and OPEN twice. The first request has no data; its response redirects to the second one.
SECOND_STEP = "data=true"
_BLOCK_BYTES = 128 << 20


@dataclass(frozen=True)
class Request:
    """A request: its operation, such as ``GET OPEN``, its path, and its parameters by name in lower case."""

    operation: str
    path: str
    parameters: Mapping[str, str]

    def flag(self, name: str) -> bool:
        return self.parameters.get(name, "").lower() == "true"

    def number(self, name: str) -> int | None:
        """Return a parameter that is a number; None without it.

        Raises:
            OptionError: the parameter is not a whole number.
        """
        text = self.parameters.get(name)
        if text is None or text == "null":
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise OptionError(f"parameter {name} cannot be read", received=repr(text), valid="a whole number")
        return int(text)

    @property
    def has_data(self) -> bool:
        """Whether this is the second request of a CREATE or OPEN."""
        return self.flag("data")


@dataclass(frozen=True)
class Response:
    """A response with its whole body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def parse_request(method: str, raw_path: str, query: str) -> Request | None:
    """Parse a request. Return None if it is not a request of this protocol.

    Args:
        raw_path: the percent-encoded path.
    """
    path = unquote(raw_path)
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        return None
    parameters = {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}
    operation = f"{method} {parameters.pop('op', '').upper()}"
    return Request(operation, path.removeprefix(ROOT) or "/", parameters)


# -- responses ----------------------------------------------------------------------------------------------


def json_response(value: Mapping[str, Any], status: int = 200) -> Response:
    return Response(status, json.dumps(value).encode())


def boolean(value: bool) -> Response:
    return json_response({"boolean": value})


def redirect(scheme: str, host: str, raw_path: str, query: str) -> Response:
    """Return the response to the first request of a CREATE or OPEN: a redirect to the same address."""
    return Response(307, headers={"location": f"{scheme}://{host}{raw_path}?{query}&{SECOND_STEP}"})


def file_status(status: FileStatus) -> Response:
    return json_response({"FileStatus": _fields(status, "")})


def file_statuses(directory: str, found: Sequence[FileStatus]) -> Response:
    """Return a listing. The listing of a file is the file itself, without a name."""
    fields = [_fields(status, "" if status.path == directory else status.name) for status in found]
    return json_response({"FileStatuses": {"FileStatus": fields}})


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


SERVER_DEFAULTS = json_response(
    {
        "FsServerDefaults": {
            # The size of a block must be a multiple of bytesPerChecksum.
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
HOME_DIRECTORY = json_response({"Path": "/user/headrace"})


# -- errors -----------------------------------------------------------------------------------------------


def remote_exception(status: int, java_class: str, message: str) -> Response:
    """Return a response that the client turns into a Java exception."""
    name = java_class.rpartition(".")[2]
    return json_response(
        {"RemoteException": {"exception": name, "javaClassName": java_class, "message": message}}, status
    )


def access_denied(status: int, message: str) -> Response:
    """Return the response to a caller without the secret (401), or for a path that is not served (403)."""
    return remote_exception(status, "org.apache.hadoop.security.AccessControlException", message)


def error_response(error: Exception) -> Response:
    """Return the response for an error."""
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
    return remote_exception(500, "java.io.IOException", "the server failed; its log has the cause")
