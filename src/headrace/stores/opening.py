"""How a store is opened: the value that the module ``opening`` of each store's folder declares."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.errors import OptionError
from headrace.ports import Store
from headrace.ports.backups import Backup, Progress

_LONGEST_SECONDS = 1e9
OpenStore: TypeAlias = Callable[[str | os.PathLike[str], Mapping[str, Any], bool], Store]
"""Takes an address, options whose names are known, and whether a missing store is created."""
RestoreStore: TypeAlias = Callable[[str | os.PathLike[str], str | os.PathLike[str], Progress | None], Backup]
"""Takes the directory of a backup, the address of the new store, and a function that shows the progress."""


@dataclass(frozen=True)
class Opening:
    """What `headrace.stores.registry` knows of a kind of store before it imports the store.

    Attributes:
        what: the kind of store in messages, with its article.
        form: an address of such a store, for messages.
        schemes: the schemes of its URLs, in lower case.
        options: the names of its options.
        open: opens a store. It imports what the store needs, and checks the address and the options' values.
        takes_paths: a path without a scheme is the address of such a store.
        extra: the extra of the headrace package that installs the store's packages; None if headrace itself does.
        packages: the top-level packages of the extra that the store imports.
        restore: makes a store at an address of a backup's directory; None if such stores have no backups.
        mistaken_schemes: schemes that users write for this store, each with the text that names the right form.
    """

    what: str
    form: str
    schemes: tuple[str, ...]
    options: tuple[str, ...]
    open: OpenStore
    takes_paths: bool = False
    extra: str | None = None
    packages: tuple[str, ...] = ()
    restore: RestoreStore | None = None
    mistaken_schemes: Mapping[str, str] = field(default_factory=dict)


def seconds(value: object, name: str) -> float:
    """Return the value of an option that is a time in seconds: a number, or the text of one.

    Raises:
        OptionError: it is no number from 0 on.
    """
    number = value
    if isinstance(value, str):
        with suppress(ValueError):
            number = float(value)
    # NaN is neither above 0 nor below the limit.
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _LONGEST_SECONDS:
        raise OptionError(
            f"option {name} cannot be read", received=repr(value)[:200], valid="a number of seconds from 0 on"
        )
    return float(number)
