"""Opens the store of a PostgreSQL database by its URL. Messages show no more of a URL than its scheme."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.errors import OptionError
from headrace.options.kinds import name, secret
from headrace.options.option import Option
from headrace.stores.opening import CheckpointScheme, Opening, StoreOption, seconds

if TYPE_CHECKING:
    from headrace.stores.postgres.store import PostgresStore

_VALID_URL = "postgresql://user@host:port/database, or without the parts that libpq's environment and defaults provide"
_SCHEMES = ("postgresql", "postgres")
_LONGEST_NAME = 63
_DEFAULT_SCHEMA = "headrace"
# Variables of libpq that name a server or a database.
_DATABASE_VARIABLES = ("PGSERVICE", "PGHOST", "PGDATABASE")
# Parameters of libpq that are options of the store, by the same names.
_LIBPQ_OPTIONS = (
    StoreOption(
        "password",
        Option("password", "PostgreSQL: the password; by default PGPASSWORD, `~/.pgpass` or the service file", secret),
    ),
    StoreOption(
        "service", Option("service", "PostgreSQL: the service in libpq's service file that completes the address")
    ),
    StoreOption("sslmode", Option("sslMode", "PostgreSQL: libpq's `sslmode`, such as `verify-full`")),
    StoreOption(
        "sslrootcert",
        Option(
            "sslRootCert", "PostgreSQL: the file with the certificates of trusted authorities, libpq's `sslrootcert`"
        ),
    ),
    *map(
        StoreOption,
        (
            "user",
            "passfile",
            "sslcert",
            "sslkey",
            "sslpassword",
            "sslcrl",
            "channel_binding",
            "connect_timeout",
            "target_session_attrs",
            "application_name",
            "options",
        ),
    ),
)
_OWN_OPTIONS = (
    StoreOption("schema", Option("headraceSchema", "PostgreSQL: the schema of headrace's own tables; `headrace` by "
                                 "default", name)),
    StoreOption("unrepresentable", Option(
        "unrepresentable", "PostgreSQL: what columns show for values that their types do not have here, such as "
        "`infinity`, `NaN` in `numeric(p,s)` and arrays of arrays: `until=null,shop.orders.tags=text`. `text` makes "
        "the column a string of PostgreSQL's text; without the option such a value fails the task")),
    StoreOption("retry_seconds"),
)  # fmt: skip


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
    for parameter in (each.name for each in _LIBPQ_OPTIONS):
        value = options.get(parameter)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or "\0" in str(value):
            raise OptionError(
                f"option {parameter} must be a text or a whole number", valid=f"a value of libpq's {parameter}"
            )
        if parameter in parameters:
            raise OptionError(f"option {parameter} is also in the address", valid="one of the two")
        parameters[parameter] = str(value)
    schema = options.get("schema") or _DEFAULT_SCHEMA
    if not isinstance(schema, str) or len(schema.encode()) > _LONGEST_NAME or "\0" in schema:
        raise OptionError(
            "option schema is not the name of a schema", received=repr(schema)[:200], valid="a text of up to 63 bytes"
        )
    patience = seconds(options.get("retry_seconds", Address.retry_seconds), "retry_seconds")
    choices = unrepresentable.parse(options.get("unrepresentable") or {})
    return PostgresStore(Address(parameters, patience, choices), schema)


def default_database() -> str | None:
    """Return the URL of the PostgreSQL database that the environment names; None if it names none."""
    store = os.environ.get("HEADRACE_STORE") or ""
    if _is_database(store):
        return store
    return "postgresql://" if any(map(os.environ.get, _DATABASE_VARIABLES)) else None


def _is_database(url: str) -> bool:
    return url.partition("://")[0].lower() in _SCHEMES


OPENING = Opening(
    what="a PostgreSQL database",
    form="postgresql://user@host/database",
    schemes=_SCHEMES,
    options=(*_LIBPQ_OPTIONS, *_OWN_OPTIONS),
    open=open_store,
    extra="headrace[postgres]",
    packages=("psycopg", "adbc_driver_manager", "adbc_driver_postgresql"),
    environment=("PG",),
    # In the database that a query writes, otherwise in the one that the environment names.
    checkpoint_scheme=CheckpointScheme(
        "postgresql",
        ("HEADRACE_STORE", *_DATABASE_VARIABLES),
        default_database,
        replaces_sink=lambda store_url: not _is_database(store_url),
        mistaken_schemes=dict.fromkeys(
            ("postgres", "jdbc"), "a checkpoint in a PostgreSQL database is postgresql:///path"
        ),
    ),
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
    settings = {
        "user": unquote(parts.username or ""),
        "host": unquote(parts.hostname or ""),
        "port": "" if port is None else str(port),
        "dbname": database,
    }
    return {name: value for name, value in settings.items() if value}
