"""How a store is opened: the value that a package declares as an entry point of the group ``headrace.stores``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.errors import OptionError
from headrace.model.findings import Finding
from headrace.options.kinds import secret
from headrace.options.option import Option
from headrace.options.secrets import is_secret_name
from headrace.options.settings import Settings
from headrace.ports import Store
from headrace.ports.backups import Backup, Progress

CREATION = (
    "create it with headrace.open(url, create=True), `headrace table create`, `headrace mirror --create`, or "
    "CREATE TABLE with a PRIMARY KEY"
)
"""The remedy if a store does not exist, for messages."""
_LONGEST_SECONDS = 1e9
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
OpenStore: TypeAlias = Callable[[str | os.PathLike[str], Mapping[str, Any], bool], Store]
"""Takes an address, options whose names are known, and whether a missing store is created."""
RestoreStore: TypeAlias = Callable[[str | os.PathLike[str], str | os.PathLike[str], Progress | None], Backup]
"""Takes the directory of a backup, the address of the new store, and a function that shows the progress."""


@dataclass(frozen=True)
class StoreOption:
    """An option of a kind of store.

    Attributes:
        name: its name for `headrace.open`.
        option: the option of format ``headrace`` with the same value; None if only Python has it.
        variable: the environment variable with its value for Spark, where the options do not have it. The variables of
            a store apply together: none does if an option is set whose value is required, or any if none is required.
        required: whether a store cannot be opened without it.
    """

    name: str
    option: Option | None = None
    variable: str | None = None
    required: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not isinstance(self.option, Option | None):
            raise TypeError(
                f"an option of a store has a name and an Option, or None, and not {self.name!r}, {self.option!r}"
            )
        if self.option is not None and self.option.kind is secret and not is_secret_name(self.name):
            raise TypeError(f"the name of the secret option {self.name} must contain password, secret, token or key")
        if not isinstance(self.variable, str | None):
            raise TypeError(f"the environment variable of option {self.name} must be a text")


@dataclass(frozen=True)
class CheckpointScheme:
    """The scheme of the URLs of checkpoints in a store, ``NAME:///path`` or ``NAME://HOST/path``.

    Attributes:
        name: the scheme.
        variables: the environment variables that can name the store, for messages.
        default_store: returns the URL of the store that the environment names; None if it names none.
        store_at: returns the URL of the store at the host of a checkpoint's URL; None if such URLs have no host.
        replaces_sink: returns whether ``NAME:///path`` means the environment's store and not the store that a query
            writes, for the URL of the latter.
        mistaken_schemes: schemes that users write for it, each with the text that names the right form.
    """

    name: str
    variables: tuple[str, ...]
    default_store: Callable[[], str | None]
    store_at: Callable[[str], str] | None = None
    replaces_sink: Callable[[str], bool] = lambda _: False
    mistaken_schemes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Opening:
    """What `headrace.stores.registry` knows of a kind of store before it imports the store.

    Attributes:
        what: the kind of store in messages, with its article.
        form: an address of such a store, for messages.
        schemes: the schemes of its URLs, in lower case.
        options: its options.
        open: opens a store. It imports what the store needs, and checks the address and the options' values.
        takes_paths: a path without a scheme is the address of such a store.
        extra: what ``pip install`` installs for the store's packages, such as ``headrace[yt]``; None if the package
            of the entry point does.
        packages: the top-level packages that the store imports, of ``extra``.
        restore: makes a store at an address of a backup's directory; None if such stores have no backups.
        mistaken_schemes: schemes that users write for this store, each with the text that names the right form.
        environment: prefixes of the names of environment variables that the store and its packages read.
        check_place: checks the place of a store for `headrace doctor`, before the store is opened; takes the address.
        checkpoint_scheme: the scheme of checkpoints in such stores, one of ``schemes``, besides ``headrace``; None if
            there is none.

    Raises:
        TypeError: a field has another type, or two options have one name.
    """

    what: str
    form: str
    schemes: tuple[str, ...]
    options: tuple[StoreOption, ...]
    open: OpenStore
    takes_paths: bool = False
    extra: str | None = None
    packages: tuple[str, ...] = ()
    restore: RestoreStore | None = None
    mistaken_schemes: Mapping[str, str] = field(default_factory=dict)
    environment: tuple[str, ...] = ()
    check_place: Callable[[str | os.PathLike[str]], list[Finding]] | None = None
    checkpoint_scheme: CheckpointScheme | None = None

    def __post_init__(self) -> None:
        # A package of somebody else declares it, without a type checker perhaps.
        if not are_texts(self.schemes) or not all(map(_SCHEME.fullmatch, self.schemes)):
            raise TypeError(f"schemes must be a tuple of texts such as ('my-store',), and not {self.schemes!r}")
        if not isinstance(self.options, tuple) or not all(isinstance(each, StoreOption) for each in self.options):
            raise TypeError("options must be a tuple of StoreOption values")
        names = [name.lower() for _, name in self._named(None)]
        if len(set(names)) < len(names):
            raise TypeError(f"two options have one name: {', '.join(sorted(names))}")
        if not isinstance(self.what, str) or not isinstance(self.form, str):
            raise TypeError("what and form must be texts")
        # A text would be the prefixes of its letters, and so of variables with any secrets.
        if not are_texts(self.environment) or not are_texts(self.packages):
            raise TypeError("environment and packages must be tuples of texts that are not empty")
        if not isinstance(self.mistaken_schemes, Mapping) or not isinstance(self.extra, str | None):
            raise TypeError("mistaken_schemes must be a mapping, and extra a text or None")
        if self.checkpoint_scheme is not None and (
            not isinstance(self.checkpoint_scheme, CheckpointScheme) or self.checkpoint_scheme.name not in self.schemes
        ):
            raise TypeError("checkpoint_scheme must be None, or a CheckpointScheme with the name of one of the schemes")
        if not callable(self.open):
            raise TypeError("open must be a function")
        if not all(each is None or callable(each) for each in (self.restore, self.check_place)):
            raise TypeError("restore and check_place must be functions or None")

    def with_environment(self, options: dict[str, str], names: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a format's options with values of environment variables.

        Args:
            options: the options, names in lower case.
            names: the format's names of options, by the store's; by default those of format ``headrace``.
        """
        variables = [each for each in self._named(names) if each[0].variable]
        first = [name for option, name in variables if option.required] or [name for _, name in variables]
        if any(options.get(name.lower()) for name in first):
            return options
        found = {name.lower(): os.environ.get(str(option.variable)) for option, name in variables}
        return options | {name: value for name, value in found.items() if value}

    def read(self, settings: Settings, names: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the options for `headrace.open` that a format's settings have; ``names`` as in `with_environment`.

        Raises:
            OptionError: a required option is not set.
        """
        values = {
            option.name: settings.need(name) if option.required else settings.get(name)
            for option, name in self._named(names)
        }
        return {name: value for name, value in values.items() if value is not None}

    def _named(self, names: Mapping[str, str] | None) -> list[tuple[StoreOption, str]]:
        if names is not None:
            return [(each, names[each.name]) for each in self.options if each.name in names]
        return [(each, each.option.name) for each in self.options if each.option is not None]


def are_texts(values: object) -> bool:
    """Return whether a value is a tuple of texts that are not empty."""
    return isinstance(values, tuple) and all(isinstance(each, str) and each for each in values)


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
