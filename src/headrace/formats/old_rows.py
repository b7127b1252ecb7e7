"""What a store and a table must have for streams whose rows add up to the table: option ``readAs=table``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.changes import old_rows_remedy

if TYPE_CHECKING:
    from headrace.ports import Capabilities, Table

_NEEDED = {
    "tunnels": "tunnels",
    "pre_images": "pre-images",
    "whole_rows": "the whole row of each change",
    "tells_rows": "whether the row of a change existed before",
}


def check_store(capabilities: Capabilities) -> None:
    """Raise `UnsupportedError` if a store's changes cannot add up to a table."""
    missing = [words for name, words in _NEEDED.items() if not getattr(capabilities, name)]
    if missing:
        raise UnsupportedError(
            "this store's changes do not have what readAs=table needs",
            received=f"a store without: {', '.join(missing)}",
            valid="an embedded store, a PostgreSQL database or Delta Lake",
            remedy="read the changes as they are (readAs=changes), or write them into a table of such a store",
        )


def check_old_rows(table: Table) -> None:
    """Raise `OptionError` if a table does not keep pre-images."""
    if not table.describe().options.pre_images:
        raise OptionError(
            f"option readAs=table needs the old row of each update and delete, and table {table.name!r} does not keep "
            "pre-images",
            remedy=old_rows_remedy(table.name),
        )
