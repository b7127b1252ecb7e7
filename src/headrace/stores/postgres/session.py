"""The settings of sessions. No setting of a role, a database, the environment or a pooler changes an answer.

A connection sets them when it begins. Behind a pooler, each transaction can have another session of the server, so each
transaction sets them for itself.

Statements find names, operators, functions and casts in ``pg_catalog`` only: another schema of the search path can have
an operator for exactly the types of a statement, which the server would call with the rights of headrace's user. A
write into a user's table runs under the user's own search path, for the functions of its triggers, and so it names the
schema of each operator and function (`OPERATOR`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString, NamedTuple

from psycopg import sql

CATALOG_PATH: Final = "pg_catalog, pg_temp"
"""The search path of all statements. Without a place of its own, ``pg_temp`` would come first."""
_ANSWERS: Final[Mapping[str, str]] = {
    "search_path": CATALOG_PATH,
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "xmloption": "content",
    "lc_monetary": "C",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    # libpq prints messages of the server.
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
}
# ADBC asks the catalog when it connects, before a statement can set anything.
_CONNECTING: Final = ("search_path", "quote_all_identifiers", "client_min_messages")
# No answer depends on them: a user who names one in option `options` keeps it. `row_security = off` lets a read fail
# whose rows a policy would hide.
_CHOICES: Final[Mapping[str, str]] = {
    "row_security": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # A server that waits for a client notices within a minute, not after two hours, that its machine has disappeared:
    # the locks of its transaction let other writers wait. `tcp_user_timeout`, for a server that sends, would also end
    # the connection of a client that reads slowly.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
# From PostgreSQL 17 on.
_TRANSACTION_TIMEOUT, _WITH_TRANSACTION_TIMEOUT = "transaction_timeout", 170_000

FACTS: Final[LiteralString] = (
    "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('search_path'),"
    " pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('quote_all_identifiers'),"
    " (SELECT pg_catalog.sum(numbackends) FROM pg_catalog.pg_stat_database),"
    " pg_catalog.current_setting('max_connections')"
)
"""Asks a session for the values of `Server`, before its settings are changed."""


class Server(NamedTuple):
    """What a connection has learned about the sessions of its server.

    Attributes:
        version: the version of the server, as libpq has it.
        options: the user's own settings, as libpq's parameter ``options`` has them.
        pooled: whether a pooler is between the client and the server: the session has another process than the server
            has named to libpq.
        search_path: the search path of the user.
        synchronous: whether commits wait for the disk.
        quotes: whether the server quotes all names that it shows.
        crowded: whether more than half of the connections of the server were in use.
    """

    version: int
    options: str
    pooled: bool
    search_path: str
    synchronous: bool
    quotes: bool
    crowded: bool

    @property
    def settings(self) -> str:
        """The statement that sets all settings: of the session, or behind a pooler of the transaction."""
        chosen = dict(_CHOICES)
        if self.version >= _WITH_TRANSACTION_TIMEOUT:
            chosen[_TRANSACTION_TIMEOUT] = "0"
        values = {**_ANSWERS, **{name: value for name, value in chosen.items() if name not in self.options}}
        if not self.synchronous:
            # Spark takes a published batch for durable.
            values["synchronous_commit"] = "on"
        calls = (f"pg_catalog.set_config('{name}', '{value}', {self.pooled})" for name, value in values.items())
        return f"SELECT {', '.join(calls)}"

    @property
    def connecting(self) -> str:
        """libpq's parameter ``options`` for ADBC: the user's own settings, and those that its first statements need."""
        needed = (f"-c {name}={_ANSWERS[name].replace(' ', '')}" for name in _CONNECTING)
        return " ".join([self.options, *needed]).strip()

    @property
    def writing_path(self) -> str:
        """The search path of writes into users' tables; types are found in ``pg_catalog`` first."""
        return f"pg_catalog, {self.search_path}" if self.search_path else "pg_catalog"


def path_statement(path: str) -> str:
    """Return the statement that sets the search path until the end of the transaction."""
    return sql.SQL("SELECT pg_catalog.set_config('search_path', {}, true)").format(sql.Literal(path)).as_string(None)
