"""Opens the store of a PostgreSQL database by its URL. Messages show no more of a URL than its scheme."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError
from headrace.stores.opening import Opening, seconds

if TYPE_CHECKING:
    from headrace.stores.postgres.store import PostgresStore

_VALID_URL = "postgresql://user@host:port/database, or without the parts that libpq's environment and defaults provide"
_LONGEST_NAME = 63
_DEFAULT_SCHEMA = "headrace"
# Parameters of libpq that are options of the store, by the same names.
_LIBPQ_OPTIONS = (
    "user",
    "password",
    "passfile",
    "service",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "channel_binding",
    "connect_timeout",
    "target_session_attrs",
    "application_name",
    "options",
)


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> PostgresStore:
    """Return the store of a database, without connecting to it.

    Args:
        url: ``postgresql://[user@]host[:port]/database``. Missing parts come from libpq: the service, the variables
            ``PGHOST``, ``PGPORT``, ``PGUSER``, ``PGDATABASE`` and its defaults.
        options: parameters of libpq by their names, such as ``password``, ``service`` and ``sslmode``. Without a
            password, libpq looks for ``PGPASSWORD`` and ``~/.pgpass``.
            ``schema``: the schema of headrace's own tables, ``headrace`` by default. The first write that needs
            one creates it.
            ``retry_seconds``: how long a call that fails with a temporary error is repeated; 30 by default.
            ``unrepresentable``: what columns show for values that Arrow does not have, such as ``infinity``; see
            `headrace.stores.postgres.unrepresentable`.
        create: ignored; a database is not created by its clients.

    Raises:
        OptionError: the URL has another form, or an option has an invalid value.
    """
    from headrace.stores.postgres import unrepresentable
    from headrace.stores.postgres.connection import Address
    from headrace.stores.postgres.store import PostgresStore

    parameters = _parse(str(url))
    for name in _LIBPQ_OPTIONS:
        value = options.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or "\0" in str(value):
            raise OptionError(f"option {name} must be a text or a whole number", valid=f"a value of libpq's {name}")
        if name in parameters:
            raise OptionError(f"option {name} is also in the address", valid="one of the two")
        parameters[name] = str(value)
    schema = options.get("schema") or _DEFAULT_SCHEMA
    if not isinstance(schema, str) or len(schema.encode()) > _LONGEST_NAME or "\0" in schema:
        raise OptionError(
            "option schema is not the name of a schema", received=repr(schema)[:200], valid="a text of up to 63 bytes"
        )
    patience = seconds(options.get("retry_seconds", Address.retry_seconds), "retry_seconds")
    choices = unrepresentable.parse(options.get("unrepresentable") or {})
    return PostgresStore(Address(parameters, patience, choices), schema)


OPENING = Opening(
    what="a PostgreSQL database",
    form="postgresql://user@host/database",
    schemes=("postgresql", "postgres"),
    options=(*_LIBPQ_OPTIONS, "schema", "retry_seconds", "unrepresentable"),
    open=open_store,
    extra="postgres",
    packages=("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
)


def _parse(url: str) -> dict[str, str]:
    """Return the parameters of libpq in a URL."""
    wrong = OptionError("this is not the address of a PostgreSQL database", valid=_VALID_URL)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.password is not None:
        raise OptionError(
            "the address of a store cannot contain a password",
            valid=_VALID_URL,
            remedy="use ~/.pgpass, PGPASSWORD, a service file (option service) or option password",
        )
    database = unquote(parts.path.removeprefix("/"))
    if "/" in database or "\0" in database or parts.query or parts.fragment or port == 0:
        raise wrong
    found = {
        "user": unquote(parts.username or ""),
        "host": unquote(parts.hostname or ""),
        "port": "" if port is None else str(port),
        "dbname": database,
    }
    return {name: value for name, value in found.items() if value}
