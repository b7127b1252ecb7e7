"""The names of an embedded store: tables, queues, consumers and producers share one namespace, table ``object``."""

from __future__ import annotations

from typing import Literal, TypeAlias

import apsw

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError

Kind: TypeAlias = Literal["table", "queue", "consumer", "producer"]


def names(connection: apsw.Connection, kind: Kind) -> list[str]:
    """Return the names of all objects of a kind, sorted."""
    return sorted(name for (name,) in connection.execute("SELECT name FROM object WHERE kind = ?", (kind,)))


def find(connection: apsw.Connection, name: str, kind: Kind) -> int:
    """Return the id of the object of that name and kind.

    Raises:
        NotFoundError: nothing of this name is there, or something of another kind.
    """
    found = connection.execute("SELECT id, kind FROM object WHERE name = ?", (name,)).fetchone()
    if found is not None and found[1] == kind:
        return int(found[0])
    raise not_found(connection, name, kind)


def not_found(connection: apsw.Connection, name: str, kind: Kind) -> NotFoundError:
    """Return the error that nothing of this name and kind is there."""
    found = connection.execute("SELECT id, kind FROM object WHERE name = ?", (name,)).fetchone()
    received = repr(name) if found is None else f"{name!r}, which is a {found[1]}"
    return NotFoundError(f"no such {kind}", received=received, valid=names(connection, kind))


def find_to_drop(connection: apsw.Connection, name: str, kind: Kind, *, missing_ok: bool) -> int | None:
    """Return the id of an object as `find` does; None if it is not there and need not be."""
    try:
        return find(connection, name, kind)
    except NotFoundError:
        if missing_ok:
            return None
        raise


def is_taken(connection: apsw.Connection, name: str, kind: Kind, *, exist_ok: bool) -> bool:
    """Tell whether an object of that name and kind is there, to be used as it is; False if the name is free.

    Raises:
        AlreadyExistsError: it is there and that is not wanted, or the name is that of another kind.
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
            f"a {kind} of this name is there",
            received=repr(name),
            remedy="pass exist_ok=True (on the command line --if-not-exists) to use it as it is",
        )
    return True


def check_name(name: str, kind: Kind) -> None:
    """Raise `OptionError` unless a text can be the name of a new object."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"a {kind} needs a name that is not empty", received=repr(name))
    try:
        name.encode()
    except UnicodeEncodeError:
        raise OptionError(f"a {kind} name must be valid Unicode", received=ascii(name)) from None
