"""The names of an embedded store: tables, queues, consumers and producers share one namespace, table ``object``."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal, TypeAlias

import apsw

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError
from headrace.model.own_names import of_users
from headrace.stores.embedded import chunks

ObjectKind: TypeAlias = Literal["table", "queue", "consumer", "producer"]


def names(connection: apsw.Connection, kind: ObjectKind) -> list[str]:
    """Return the names of all objects of a kind, sorted."""
    return sorted(name for (name,) in connection.execute("SELECT name FROM object WHERE kind = ?", (kind,)))


def find(connection: apsw.Connection, name: str, kind: ObjectKind) -> int:
    """Return the id of the object of that name and kind.

    Raises:
        NotFoundError: no object has this name, or it is of another kind.
    """
    found = connection.execute("SELECT id, kind FROM object WHERE name = ?", (name,)).fetchone()
    if found is not None and found[1] == kind:
        return int(found[0])
    raise not_found(connection, name, kind)


def not_found(connection: apsw.Connection, name: str, kind: ObjectKind) -> NotFoundError:
    """Return the error for a name that no object of this kind has."""
    found = connection.execute("SELECT id, kind FROM object WHERE name = ?", (name,)).fetchone()
    received = repr(name) if found is None else f"{name!r}, which is a {found[1]}"
    return NotFoundError(f"no such {kind}", received=received, valid=of_users(names(connection, kind)))


def find_to_drop(connection: apsw.Connection, name: str, kind: ObjectKind, *, missing_ok: bool) -> int | None:
    """Return the id of an object as `find` does; None if it does not exist and ``missing_ok`` is set."""
    try:
        return find(connection, name, kind)
    except NotFoundError:
        if missing_ok:
            return None
        raise


def is_taken(connection: apsw.Connection, name: str, kind: ObjectKind, *, exist_ok: bool) -> bool:
    """Return whether an object of that name and kind exists; False if the name is free.

    Raises:
        AlreadyExistsError: the object exists and ``exist_ok`` is not set, or an object of another kind has the name.
    """
    found = connection.execute("SELECT kind FROM object WHERE name = ?", (name,)).fetchone()
    if found is None:
        return False
    if found[0] != kind:
        raise AlreadyExistsError(
            f"the name of the {kind} is taken",
            received=f"{name!r}, which is a {found[0]}",
            remedy="choose another name: tables, queues, consumers and producers share one namespace",
        )
    if not exist_ok:
        raise AlreadyExistsError(
            f"a {kind} of this name already exists",
            received=repr(name),
            remedy="pass exist_ok=True (on the command line --if-not-exists) to use it as it is",
        )
    return True


def create(
    connection: apsw.Connection, name: str, kind: ObjectKind, options: Any = None, schema_version: int = 0
) -> int:
    """Create an object with options, a dataclass, inside the caller's write transaction and return its id.

    The name must be free.
    """
    connection.execute(
        "INSERT INTO object (name, kind, options, schema_version) VALUES (?, ?, ?, ?)",
        (name, kind, _options_to_json(options), schema_version),
    )
    return connection.last_insert_rowid()


def set_options(connection: apsw.Connection, object_id: int, options: Any) -> None:
    """Save the options of an object inside the caller's write transaction."""
    connection.execute("UPDATE object SET options = ? WHERE id = ?", (_options_to_json(options), object_id))


def _options_to_json(options: Any) -> str:
    return "{}" if options is None else json.dumps(dataclasses.asdict(options))


def drop(connection: apsw.Connection, object_id: int) -> None:
    """Remove an object with its partitions and their rows inside the caller's write transaction."""
    for (partition_id,) in list(connection.execute("SELECT id FROM partition WHERE object = ?", (object_id,))):
        chunks.delete(connection, *chunks.chunk_ids(partition_id))
    connection.execute("DELETE FROM partition WHERE object = ?", (object_id,))
    connection.execute("DELETE FROM object_schema WHERE object = ?", (object_id,))
    connection.execute("DELETE FROM object WHERE id = ?", (object_id,))


def check_name(name: str, kind: ObjectKind) -> None:
    """Raise `OptionError` if a text cannot be the name of a new object."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"a {kind} needs a name that is not empty", received=repr(name))
    try:
        name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"a {kind} name must be valid Unicode", received=ascii(name)) from None
