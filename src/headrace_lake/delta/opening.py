"""Opens the store of a directory of Delta Lake tables by its URL."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import NotFoundError, OptionError, StoreError
from headrace.options.kinds import secret, text
from headrace.options.option import Option
from headrace.stores.opening import CREATION, Opening, StoreOption

if TYPE_CHECKING:
    from headrace_lake.delta.store import DeltaStore

_FORM = "delta:///directory or delta+s3://bucket/prefix"
_OTHERS = f"headrace writes Delta tables: {_FORM}"
_KEY = re.compile(r"[A-Za-z0-9._-]+(/[\w @+,=.~()-]+)*")
_VARIABLES = {
    "endpoint": ("AWS_ENDPOINT_URL",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
}


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> DeltaStore:
    """Return the store of a directory.

    Args:
        url: ``delta:///directory`` or ``delta+s3://bucket/prefix``.
        options: ``home``: the URL of the store with the state of jobs; by default an embedded store in the directory
            ``_headrace`` below the tables. For a bucket ``endpoint``, ``region``, ``access_key_id``,
            ``secret_access_key`` and ``session_token``, with the variables of AWS as defaults.
        create: create the directory if it does not exist.

    Raises:
        NotFoundError: the directory does not exist, and ``create`` is not set.
        OptionError: the URL has another form, or an option has an invalid value.
        StoreError: the file system rejects the path.
    """
    from headrace_lake.delta.store import DeltaStore

    if str(url).lower().startswith("delta+s3:"):
        return _open_bucket(str(url), options)
    directory = _directory(str(url)).resolve()
    if "%" in str(directory):
        # The package deltalake decodes the path twice.
        raise OptionError("the path of Delta tables cannot contain %", received=str(directory))
    home = _home(options)
    try:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        if not directory.is_dir():
            raise NotFoundError("no such directory", received=str(directory), remedy=CREATION)
        return DeltaStore(directory, home)
    except OSError as error:
        raise StoreError(
            f"the store's directory cannot be used: {error.strerror}", received=repr(str(directory))[:200]
        ) from error


def _home(options: Mapping[str, Any]) -> str | None:
    home = options.get("home")
    if home is not None and (not isinstance(home, str) or ("://" not in home and not home.startswith("/"))):
        # Processes of Spark have another working directory. The message shows no URL, which can have a password.
        raise OptionError("option home must be the URL of a store, or an absolute path")
    return home


def _open_bucket(url: str, options: Mapping[str, Any]) -> DeltaStore:
    """Return the store of a bucket.

    Raises:
        NotFoundError: there is no bucket of the name.
        OptionError: the URL has another form, an option has an invalid value, or option ``home`` is missing.
        StoreError: the service cannot be reached, or refuses the keys.
    """
    from headrace_lake.delta.store import DeltaStore
    from headrace_lake.places import Bucket, ObjectPath

    key = unquote(url.partition("://")[2]).strip("/")
    if not _KEY.fullmatch(key):
        # It can have a password.
        raise OptionError(
            "the address of Delta tables in a bucket names the bucket and a prefix, and nothing else",
            received="delta+s3://…",
            valid="delta+s3://bucket/prefix",
            remedy="pass endpoint, access_key_id and secret_access_key as options",
        )
    found = {name: _setting(options, name) for name in _VARIABLES}
    endpoint = found.pop("endpoint") or ""
    if endpoint and not re.fullmatch(r"https?://[\w.:-]+/?", endpoint):
        raise OptionError("option endpoint must be the URL of a service", valid="https://host, http://host:port")
    if bool(found["access_key_id"]) != bool(found["secret_access_key"]):
        raise OptionError("options access_key_id and secret_access_key belong together: one of them is missing")
    names = {"access_key_id": "access_key", "secret_access_key": "secret_key"}
    bucket = Bucket(endpoint, {names.get(name, name): value for name, value in found.items() if value})
    home = _home(options)
    if home is None:
        raise OptionError(
            "Delta tables in a bucket need another store for the state of jobs",
            remedy="set option home (in Spark deltaHome) to the URL of a PostgreSQL database, or the path of an "
            "embedded store that all processes reach",
        )
    if not ObjectPath(bucket, key.partition("/")[0]).exists():
        raise NotFoundError("no such bucket", received=key.partition("/")[0], remedy="create the bucket")
    return DeltaStore(ObjectPath(bucket, key), home)


def _setting(options: Mapping[str, Any], name: str) -> str | None:
    """Return the value of an option, or of its variables."""
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"option {name} must be a text", valid="a str")
    found = value or next((found for each in _VARIABLES[name] if (found := os.environ.get(each))), None)
    if found is not None and not (found.isascii() and found.isprintable()):
        # The native code of deltalake panics at a header with it.
        raise OptionError(
            f"option {name}, or its variable {_VARIABLES[name][0]}, has a character that no request can have",
            valid="printable ASCII characters; a text from a file can end with a line feed",
        )
    return found


OPENING = Opening(
    what="a directory or bucket of Delta Lake tables",
    form=_FORM,
    schemes=("delta", "delta+s3"),
    options=(
        StoreOption("home", Option("deltaHome", "Delta Lake: the URL of the store with the state of jobs; by default "
                    "an embedded store below the directory of the tables", text)),
        StoreOption("endpoint", Option("deltaEndpoint", "Delta Lake in a bucket: the URL of the service; by default "
                    "AWS_ENDPOINT_URL, or AWS", text)),
        StoreOption("region", Option("deltaRegion", "Delta Lake in a bucket: the region; AWS_REGION by default", text)),
        StoreOption("access_key_id", Option("deltaAccessKeyId", "Delta Lake in a bucket: the access key; "
                    "AWS_ACCESS_KEY_ID by default", secret)),
        StoreOption("secret_access_key", Option("deltaSecretAccessKey", "Delta Lake in a bucket: the secret of the "
                    "access key; AWS_SECRET_ACCESS_KEY by default", secret)),
        StoreOption("session_token", Option("deltaSessionToken", "Delta Lake in a bucket: the token of a temporary "
                    "key; AWS_SESSION_TOKEN by default", secret)),
    ),
    open=open_store,
    extra="headrace[delta]",
    packages=("deltalake", "obstore", "pyroaring"),
    environment=("AWS_",),
    mistaken_schemes={
        "s3": _OTHERS,
        "s3a": _OTHERS,
    },
)  # fmt: skip


def _directory(url: str) -> Path:
    wrong = OptionError(
        "the address of a directory of Delta tables names the directory and nothing else",
        received="delta://…",
        valid=_FORM,
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not path.strip("/") or "\0" in path:
        raise wrong
    return Path(path)
