"""Opens the store of a Tablestore instance by its URL. Messages show no more of a URL than its scheme."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.stores.opening import Opening
from headrace.stores.tablestore.tables.write_options import WriteOptions

if TYPE_CHECKING:
    from headrace.stores.tablestore.store import TablestoreStore
    from headrace.wire.tablestore.signatures import Credentials

_VALID_URL = "tablestore+https://host/instance, or tablestore+http://host:port/instance"
_CONNECTION_OPTIONS = ("access_key_id", "access_key_secret", "sts_token", "region", "meta_table", "client")


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
    from headrace.stores.tablestore.store import TablestoreStore

    endpoint, instance = _parse(str(url))
    given = {name: value for name, value in options.items() if value is not None}
    writing = WriteOptions(**{name: value for name, value in given.items() if name not in _CONNECTION_OPTIONS})
    others = {name: given[name] for name in ("region", "meta_table", "client") if name in given}
    return TablestoreStore(endpoint, instance, _credentials(given), write_options=writing, **others)


OPENING = Opening(
    what="a Tablestore instance",
    form="tablestore+https://host/instance",
    schemes=("tablestore+https", "tablestore+http"),
    options=(*_CONNECTION_OPTIONS, *(field.name for field in dataclasses.fields(WriteOptions))),
    open=open_store,
    extra="tablestore",
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
    from headrace.wire.tablestore.signatures import Credentials

    key_id, secret, token = options.get("access_key_id"), options.get("access_key_secret"), options.get("sts_token")
    if key_id is None and secret is None:
        key_id, secret = os.environ.get("HEADRACE_ACCESS_KEY_ID"), os.environ.get("HEADRACE_ACCESS_KEY_SECRET")
        token = token or os.environ.get("HEADRACE_STS_TOKEN")
    for name, value in (("access_key_id", key_id), ("access_key_secret", secret)):
        if not value:
            raise OptionError(
                f"option {name} is missing",
                remedy="pass access_key_id and access_key_secret, or set HEADRACE_ACCESS_KEY_ID and "
                "HEADRACE_ACCESS_KEY_SECRET",
            )
    return Credentials(str(key_id), str(secret), token or None)
