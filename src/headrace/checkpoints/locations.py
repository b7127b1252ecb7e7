"""Addresses of checkpoints in a store: as users write them, and as Spark gets them.

Users write ``headrace:///path`` or ``yt:///path``. Spark gets ``webhdfs://headrace/<store>/path``, where ``headrace``
is no host but a name that Spark's settings resolve to wherever the driver serves the store's files just now: Spark
writes the addresses of some files of a query's state into its checkpoint, and they must hold after a restart on another
port, or on another machine.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from headrace.errors import OptionError
from headrace.ports.files import normal_path

SERVICE = "headrace"
"""The name that stands in the place of host and port."""
PREFIX = f"webhdfs://{SERVICE}/"
SCHEMES = ("headrace", "yt")
VALID = "headrace:///path, yt:///path or yt://proxy/path"
_URL = re.compile(r"(headrace|yt):(?://([^/]*)(/.*)?|(/.*))?", re.IGNORECASE)
# Spark's client sends other characters unescaped, or reads them as something else.
_PATH = re.compile(r"[A-Za-z0-9/._~=+@,-]+")


@dataclass(frozen=True)
class StoreLocation:
    """A checkpoint as a user names it.

    Attributes:
        scheme: ``headrace`` or ``yt``.
        proxy: the address of a cluster if the URL names one.
        path: the directory, in normal form.
    """

    scheme: str
    proxy: str | None
    path: str


def parse_location(checkpoint: str) -> StoreLocation | None:
    """Read a checkpoint's address; None if it is not one in a store.

    Raises:
        OptionError: it is in a store, and names no directory there.
    """
    if checkpoint.partition(":")[0].lower() not in SCHEMES:
        return None
    match = _URL.fullmatch(checkpoint)
    scheme, authority, path = (match[1].lower(), match[2], match[3] or match[4]) if match else ("", None, None)
    if not path or (authority and scheme != "yt") or not _PATH.fullmatch(path) or normal_path(path) == "/":
        raise OptionError(
            "not a directory for a checkpoint in a store",
            received=checkpoint.partition("://")[0] + "://…" if authority and "@" in authority else checkpoint,
            valid=f"{VALID}, with letters, digits and . _ ~ = + @ , - in the path",
        )
    return StoreLocation(scheme, authority or None, normal_path(path))


def store_key(store_id: str) -> str:
    """Return what stands for a store in addresses: the same for the same store wherever it is reached from."""
    return hashlib.sha256(store_id.encode()).hexdigest()[:12]


def served_url(store_id: str, path: str) -> str:
    """Return the address under which Spark finds a directory of a store."""
    return f"{PREFIX}{store_key(store_id)}{path}"


def parse_served(checkpoint: str) -> tuple[str, str] | None:
    """Return the store's key and the path that an address of `served_url` stands for; None if it is another one."""
    if not checkpoint.startswith(PREFIX):
        return None
    key, _, path = checkpoint.removeprefix(PREFIX).partition("/")
    return key, normal_path(f"/{path}")
