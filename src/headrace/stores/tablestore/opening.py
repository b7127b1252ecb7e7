"""From the URL of an instance and options to its store. No message shows more of an URL than its scheme."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.option_names import check_names
from headrace.stores.tablestore.store import TablestoreStore
from headrace.stores.tablestore.tables.write_options import WriteOptions
from headrace.wire.tablestore.signatures import Credentials

VALID_URL = "tablestore+https://host/instance, or tablestore+http://host:port/instance"
OPTIONS = ("access_key_id", "access_key_secret", "sts_token", "region", "meta_table", "client")
"""The options besides those of `WriteOptions`."""


def open_store(url: str, options: Mapping[str, Any]) -> TablestoreStore:
    """Return the store of an instance; nothing is sent to it yet.

    Args:
        url: ``tablestore+http(s)://host[:port]/instance``.
        options: `OPTIONS` and the fields of `WriteOptions`. Where they have no access key, the environment's
            HEADRACE_ACCESS_KEY_ID, HEADRACE_ACCESS_KEY_SECRET and HEADRACE_STS_TOKEN are used.

    Raises:
        OptionError: the URL is not of this form, an option is unknown, or there is no access key.
    """
    endpoint, instance = _parse(url)
    given = {name: value for name, value in options.items() if value is not None}
    known = (*OPTIONS, *(field.name for field in dataclasses.fields(WriteOptions)))
    check_names("a Tablestore store", options, sorted(known))
    writing = WriteOptions(**{name: value for name, value in given.items() if name not in OPTIONS})
    others = {name: given[name] for name in ("region", "meta_table", "client") if name in given}
    return TablestoreStore(endpoint, instance, _credentials(given), write_options=writing, **others)


def _parse(url: str) -> tuple[str, str]:
    """Return the endpoint and the instance."""
    wrong = OptionError("this is not the address of a Tablestore instance", valid=VALID_URL)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise OptionError(
            "the address of a store has no user or password in it",
            valid=VALID_URL,
            remedy="pass access_key_id and access_key_secret as options",
        )
    instance = parts.path.strip("/")
    if not parts.netloc or not instance or "/" in instance or parts.query or parts.fragment:
        raise wrong
    return f"{parts.scheme.removeprefix('tablestore+')}://{parts.netloc}", instance


def _credentials(options: Mapping[str, Any]) -> Credentials:
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
