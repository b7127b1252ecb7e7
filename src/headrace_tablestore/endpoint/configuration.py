"""The access keys of an endpoint and their instances, from the environment or a TOML file.

A file has one ``[[keys]]`` for each key::

    [[keys]]
    access_key_id = "…"
    access_key_secret = "…"
    instances = ["shop", "shop-test"]    # without it: all
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import OptionError
from headrace.http.configuration_file import read_entries
from headrace_tablestore.wire.limits import is_instance_name
from headrace_tablestore.wire.signatures import Credentials

ID_VARIABLE = "HEADRACE_ACCESS_KEY_ID"
SECRET_VARIABLE = "HEADRACE_ACCESS_KEY_SECRET"
INSTANCE_NAMES = "3 to 16 letters, digits and hyphens, beginning with a letter"
_KEY_FIELDS = {"access_key_id", "access_key_secret", "instances"}


@dataclass(frozen=True)
class AccessKey:
    """An access key and its instances; None for all instances."""

    credentials: Credentials
    instances: frozenset[str] | None = None

    def may_use(self, instance: str) -> bool:
        return self.instances is None or instance in self.instances


@dataclass(frozen=True)
class Configuration:
    """The directory and the access keys of an endpoint.

    Attributes:
        root: the directory. Its sub-directories are the instances.
        keys: keys by access key id.
    """

    root: Path
    keys: Mapping[str, AccessKey]

    @classmethod
    def load(
        cls, root: str | os.PathLike[str], file: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str]
    ) -> Configuration:
        """Read the keys from a file; without a file, from environment variables.

        Raises:
            OptionError: the file cannot be read or is invalid, or there is no key. Never contains a secret.
        """
        keys = _from_environment(environ) if file is None else _from_file(Path(file))
        return cls(Path(root), {key.credentials.access_key_id: key for key in keys})


def _from_environment(environ: Mapping[str, str]) -> list[AccessKey]:
    key_id, secret = environ.get(ID_VARIABLE, ""), environ.get(SECRET_VARIABLE, "")
    if not key_id or not secret:
        raise OptionError(
            "the endpoint has no access key",
            received=f"{ID_VARIABLE if not key_id else SECRET_VARIABLE} is not set",
            remedy=f"set {ID_VARIABLE} and {SECRET_VARIABLE} to values of your choice, or use --config",
        )
    return [AccessKey(Credentials(key_id, secret))]


def _from_file(file: Path) -> list[AccessKey]:
    keys = read_entries(file, "keys", _KEY_FIELDS, _parsed)
    ids = [key.credentials.access_key_id for key in keys]
    for key_id in ids:
        if ids.count(key_id) > 1:
            raise OptionError("the configuration has an access key id twice", received=key_id)
    return keys


def _parsed(entry: dict[str, Any], where: str) -> AccessKey:
    for field in ("access_key_id", "access_key_secret"):
        value = entry.get(field)
        if not isinstance(value, str) or not value:
            raise OptionError(f"{where} needs {field}", valid="a string that is not empty")
    instances = entry.get("instances")
    if instances is not None:
        if not isinstance(instances, list) or not all(isinstance(name, str) for name in instances):
            raise OptionError(f"{where}: instances must be a list of names")
        for name in instances:
            if not is_instance_name(name):
                raise OptionError(f"{where} has an invalid instance name", received=repr(name), valid=INSTANCE_NAMES)
    return AccessKey(
        Credentials(entry["access_key_id"], entry["access_key_secret"]),
        None if instances is None else frozenset(instances),
    )
