"""The locations of checkpoints, as users write them: ``headrace:///path``, ``yt:///path``, ``postgresql:///path``,
or a location for Spark.

`headrace.checkpoint_server.locations` has the addresses that Spark gets for checkpoints in a store.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.formats.registry import CHECKPOINT_SCHEMES, FORMATS
from headrace.ports.files import normal_path

_FORMS = [f"{name}:///path" for name in CHECKPOINT_SCHEMES]
_FORMS += [f"{name}://proxy/path" for name, scheme in CHECKPOINT_SCHEMES.items() if scheme.store_at]
VALID = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"
ANY_VALID = f"a directory, a URL that Spark can write such as file:///path, s3a://… or hdfs://…, or in a store {VALID}"
_URL = re.compile(r"[a-z]+(?:\+https?)?:(?://([^/]*)(/.*)?|(/.*))?", re.IGNORECASE | re.DOTALL)
# Spark's client sends other characters unescaped, or misreads them.
_PATH = re.compile(r"[A-Za-z0-9/._~=+@,-]+")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# A pathlib.Path drops the second slash of a URL. One letter is a drive of Windows.
_URL_IN_PATH = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Schemes without a file system in Hadoop, and the remedy that an error names.
_NO_FILE_SYSTEM = {"sqlite": "a checkpoint in the store that the query writes is headrace:///path"}
for _scheme in CHECKPOINT_SCHEMES.values():
    _NO_FILE_SYSTEM |= _scheme.mistaken_schemes
_NO_FILE_SYSTEM |= {
    scheme: f"a store of format {name} has no files: use a directory, or another store's headrace:///path"
    for name, each in FORMATS.items()
    for scheme in each.schemes_without_files
}


@dataclass(frozen=True)
class StoreLocation:
    """A checkpoint as a user names it.

    Attributes:
        scheme: the name of a `headrace.formats.format.CheckpointScheme`.
        proxy: the address of the cluster in the URL, ``host:port`` or ``http://host:port``; None without one.
        path: the directory, in normal form.
    """

    scheme: str
    proxy: str | None
    path: str


def parse_location(checkpoint: str) -> StoreLocation | None:
    """Parse a checkpoint's address. Return None if it is not in a store.

    Raises:
        OptionError: the address is in a store, and is not a valid directory.
    """
    name, plus, transport = checkpoint.partition(":")[0].lower().partition("+")
    scheme = CHECKPOINT_SCHEMES.get(name)
    if scheme is None or (plus and not (scheme.store_at and transport in ("http", "https"))):
        return None
    match = _URL.fullmatch(checkpoint)
    authority, path = (match[1], match[2] or match[3]) if match else (None, None)
    if (
        not path
        or (authority and not scheme.store_at)
        or (authority and "@" in authority)
        or (transport and not authority)
        or not _PATH.fullmatch(path)
        or normal_path(path) == "/"
    ):
        raise OptionError(
            "not a directory for a checkpoint in a store",
            received=_shown(checkpoint),
            valid=f"{VALID}, with letters, digits and . _ ~ = + @ , - in the path",
        )
    proxy = f"{transport}://{authority}" if transport else authority
    return StoreLocation(name, proxy or None, normal_path(path))


def checkpoint_text(checkpoint: object) -> str:
    """Return a checkpoint's address as a string that Spark or `parse_location` can read.

    A leading ``~/`` becomes the home directory, and ``file://localhost/path`` becomes ``file:///path``.

    Raises:
        OptionError: the address is not a string or a path, is empty, or is a URL of no store and no file system.
    """
    if isinstance(checkpoint, PurePath) and _URL_IN_PATH.match(str(checkpoint)):
        raise OptionError(
            "a pathlib path cannot hold a URL: it drops a slash",
            received=_shown(str(checkpoint)),
            remedy="pass the URL as a string",
        )
    text = os.fspath(checkpoint) if isinstance(checkpoint, os.PathLike) else checkpoint
    if not isinstance(text, str):
        raise OptionError("a checkpoint is a string or a path", received=type(checkpoint).__name__, valid=ANY_VALID)
    if not text.strip():
        raise OptionError("the checkpoint is empty", received=repr(text[:20]), valid=ANY_VALID)
    if text != text.strip() or any(character < " " or "\ud800" <= character <= "\udfff" for character in text):
        raise OptionError(
            "a checkpoint begins or ends with white space, or has a control character or a lone surrogate",
            received=_shown(text),
            valid=ANY_VALID,
        )
    if text == "~" or text.startswith("~/"):
        try:
            text = str(Path(text).expanduser())
        except RuntimeError:
            raise OptionError("this user has no home directory", received=_shown(text), valid=ANY_VALID) from None
    scheme = _SCHEME.match(text)
    if scheme is None:
        if text.startswith("//"):
            raise OptionError(
                "a path of a directory begins with one slash",
                received=_shown(text),
                valid=ANY_VALID,
                remedy=f"a path in a cluster of YTsaurus is yt:///{text.lstrip('/')[:100]}",
            )
        return text
    remedy = _NO_FILE_SYSTEM.get(scheme[1].lower())
    if remedy is not None:
        raise OptionError(
            "Spark cannot keep a checkpoint there", received=f"{scheme[1]}:…", valid=ANY_VALID, remedy=remedy
        )
    return _file_url(text) if scheme[1].lower() == "file" else text


def _file_url(url: str) -> str:
    """Return a ``file:`` URL without a host, as Hadoop requires."""
    match = re.fullmatch(r"file:(?://(?:localhost)?(?=/)|(?=/(?!/)))/+([^/].*)?", url, re.IGNORECASE)
    if match is None or not match[1]:
        raise OptionError(
            "a file URL of a checkpoint names an absolute path and no host",
            received=_shown(url),
            valid="file:///path, or the path alone",
        )
    return f"file:///{match[1]}"


def _shown(checkpoint: str) -> str:
    """Return an address without the parts that may contain a secret."""
    shown = checkpoint.partition("?")[0][:200]
    try:
        secret = "@" in (urlsplit(shown).netloc)
    except ValueError:
        secret = True
    return repr(f"{shown.partition('://')[0]}://…" if secret else shown)
