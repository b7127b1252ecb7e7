"""Opens the store of a Tablestore instance by its URL. Messages show no more of a URL than its scheme."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.options.kinds import name, secret
from headrace.options.option import Option
from headrace.stores.opening import Opening, StoreOption
from headrace_tablestore.store.tables.write_options import WriteOptions

if TYPE_CHECKING:
    from headrace_tablestore.store.store import TablestoreStore
    from headrace_tablestore.wire.signatures import Credentials

_VALID_URL = "tablestore+https://host/instance, or tablestore+http://host:port/instance"
_KEY_ID, _KEY_SECRET, _TOKEN = "HEADRACE_ACCESS_KEY_ID", "HEADRACE_ACCESS_KEY_SECRET", "HEADRACE_STS_TOKEN"
_CONNECTION_OPTIONS = (
    StoreOption(
        "access_key_id",
        Option("accessKeyId", f"Tablestore: the AccessKey id for an instance; the environment's {_KEY_ID} by default",
               secret), _KEY_ID, required=True),
    StoreOption(
        "access_key_secret",
        Option("accessKeySecret", f"Tablestore: the AccessKey secret; the environment's {_KEY_SECRET} by default",
               secret), _KEY_SECRET, required=True),
    StoreOption("sts_token", Option("stsToken", "Tablestore: the token of a temporary AccessKey", secret), _TOKEN),
    StoreOption("region", Option("region", "Tablestore: the region, such as `cn-hangzhou`; requests then have "
                                 "signatures of version 4")),
    StoreOption("meta_table", Option("metaTable", "Tablestore: the table for batches and publications; "
                                     "`__spark_meta_checkpoint__` by default", name)),
    StoreOption("client"),
)  # fmt: skip
_WRITE_OPTIONS = tuple(field.name for field in dataclasses.fields(WriteOptions))


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> TablestoreStore:
    """Return the store of an instance, without sending a request.

    Args:
        url: ``tablestore+http(s)://host[:port]/instance``.
        options: ``access_key_id``, ``access_key_secret``, ``sts_token``, ``region``, ``meta_table``, ``client`` and
            the fields of `WriteOptions`. Without an access key, the environment variables HEADRACE_ACCESS_KEY_ID,
            HEADRACE_ACCESS_KEY_SECRET and HEADRACE_STS_TOKEN are used.
        create: ignored; the service's console creates instances.

    Raises:
        OptionError: the URL has another form, an option has an invalid value, or the access key is missing.
    """
    from headrace_tablestore.store.store import TablestoreStore

    endpoint, instance = _parse(str(url))
    given = {name: value for name, value in options.items() if value is not None}
    writing = WriteOptions(**{name: value for name, value in given.items() if name in _WRITE_OPTIONS})
    others = {name: given[name] for name in ("region", "meta_table", "client") if name in given}
    return TablestoreStore(endpoint, instance, _credentials(given), write_options=writing, **others)


OPENING = Opening(
    what="a Tablestore instance",
    form="tablestore+https://host/instance",
    schemes=("tablestore+https", "tablestore+http"),
    options=(*_CONNECTION_OPTIONS, *map(StoreOption, _WRITE_OPTIONS)),
    open=open_store,
    extra="headrace[tablestore]",
    environment=("HEADRACE_",),
    packages=("certifi", "google", "urllib3"),
    mistaken_schemes={
        "http": "an instance of Tablestore is tablestore+http://host/instance",
        "https": "an instance of Tablestore is tablestore+https://host/instance",
        "tablestore": "an instance of Tablestore is tablestore+https://host/instance",
    },
)


def _parse(url: str) -> tuple[str, str]:
    """Return the endpoint and the instance."""
    wrong = OptionError("this is not the address of a Tablestore instance", valid=_VALID_URL)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "the address of a store cannot contain a user or password",
            valid=_VALID_URL,
            remedy="pass access_key_id and access_key_secret as options",
        )
    instance = parts.path.strip("/")
    if not parts.netloc or not instance or "/" in instance or parts.query or parts.fragment:
        raise wrong
    return f"{parts.scheme.removeprefix('tablestore+')}://{parts.netloc}", instance


def _credentials(options: Mapping[str, Any]) -> Credentials:
    from headrace_tablestore.wire.signatures import Credentials

    key_id, secret, token = options.get("access_key_id"), options.get("access_key_secret"), options.get("sts_token")
    if key_id is None and secret is None:
        key_id, secret = os.environ.get(_KEY_ID), os.environ.get(_KEY_SECRET)
        token = token or os.environ.get(_TOKEN)
    for option, value in (("access_key_id", key_id), ("access_key_secret", secret)):
        if not value:
            raise OptionError(
                f"option {option} is missing",
                remedy=f"pass access_key_id and access_key_secret, or set {_KEY_ID} and {_KEY_SECRET}",
            )
    return Credentials(str(key_id), str(secret), token or None)
