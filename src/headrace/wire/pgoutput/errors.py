"""The errors of the decoder."""

from __future__ import annotations

from headrace.errors import HeadraceError, SchemaError


class PgOutputError(HeadraceError):
    """Bytes are not valid messages of pgoutput."""


def value_error(column: str, received: object, valid: str, remedy: str | None = None) -> SchemaError:
    """Return the error for a value that does not fit the type of its column in headrace."""
    return SchemaError(
        f"column {column!r} has a value that does not fit its type", received=received, valid=valid, remedy=remedy
    )
