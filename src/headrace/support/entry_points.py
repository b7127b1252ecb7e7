"""The parts of headrace that packages bring, by Python's entry points: stores, formats, endpoints and commands.

headrace's own parts are entry points, too; pyproject.toml names them. An entry point that cannot be loaded is left out:
a warning names its package, and `failures` has the text for messages.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headrace.errors import MissingDependencyError, without_passwords

STORES = "headrace.stores"
"""Entry points of this group are values of `headrace.stores.opening.Opening`."""
FORMATS = "headrace.formats"
"""Entry points of this group are classes of `headrace.formats.source.Source`."""
ENDPOINTS = "headrace.endpoints"
"""Entry points of this group are values of `headrace.http.endpoint.Endpoint`."""
COMMANDS = "headrace.commands"
"""Entry points of this group are commands of click. Their names are those of the commands."""
_OWN = "headrace"
_log = logging.getLogger(__name__)


@cache
def entries(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by name: headrace's own first, each package's in the order of names.

    Raises:
        MissingDependencyError: Python does not find the entry points of headrace itself.
    """
    found = sorted(entry_points(group=group), key=lambda entry: (_package(entry) != _OWN, entry.name))
    if not any(_package(entry) == _OWN for entry in found):
        raise MissingDependencyError(
            "the entry points of headrace are not found",
            received=f"no package headrace with the group {group}",
            remedy="install headrace with pip; a zip file for --py-files needs the directory headrace-….dist-info, too",
        )
    by_name: dict[str, EntryPoint] = {}
    for entry in found:
        # A package that takes the name of another part does not replace it.
        if by_name.setdefault(entry.name, entry).value != entry.value:
            _fail(entry, f"package {_package(by_name[entry.name])} has the same name")
    return by_name


@cache
def parts(group: str, kind: type) -> Mapping[str, Any]:
    """Return the values of a group's entry points by name.

    Args:
        kind: the class of the values; for formats, the base of the classes.

    Raises:
        MissingDependencyError: a package of headrace itself is missing.
    """
    found: dict[str, Any] = {}
    for name, entry in entries(group).items():
        try:
            value = entry.load()
            if group != FORMATS and not isinstance(value, kind):
                raise TypeError(f"{entry.value} is no {kind.__name__}")
            if group == FORMATS and not (isinstance(value, type) and issubclass(value, kind) and value is not kind):
                raise TypeError(f"{entry.value} is no subclass of {kind.__name__}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if _package(entry) != _OWN:
                _fail(entry, f"{type(error).__name__}: {error}")
            elif isinstance(error, ModuleNotFoundError) and str(error.name).startswith(_OWN):
                raise MissingDependencyError(
                    "a package of headrace is not found",
                    received=str(error),
                    remedy="install headrace with pip; a zip file for --py-files needs all packages headrace*",
                ) from error
            else:
                raise
        else:
            found[name] = value
    return found


def is_free(group: str, name: str, owned: Iterable[str], owners: dict[str, str]) -> bool:
    """Return whether no earlier part of a group has what a part wants to have alone, such as a scheme.

    Otherwise the part is left out, as if it could not be loaded.

    Args:
        owned: what the part would have.
        owners: the names of parts, by what they have; the part is added.
    """
    taken = [each for each in owned if owners.get(each, name) != name]
    if taken:
        owner = entries(group)[owners[taken[0]]]
        refuse(group, name, f"{owner.name} of package {_package(owner)} has {', '.join(map(repr, taken))}")
    else:
        owners |= dict.fromkeys(owned, name)
    return not taken


def refuse(group: str, name: str, why: str) -> None:
    """Leave a part out that cannot be used beside the others, as if it could not be loaded."""
    _fail(entries(group)[name], why)


def other_packages(group: str) -> set[str]:
    """Return the packages besides headrace that have entry points of a group."""
    return {_package(entry) for entry in entries(group).values()} - {_OWN}


def failures(group: str) -> tuple[str, ...]:
    """Return a sentence for each entry point of a group that could not be loaded so far."""
    return tuple(_failures.get(group, {}).values())


_failures: dict[str, dict[str, str]] = {}


def _fail(entry: EntryPoint, why: str) -> None:
    text = f"{entry.group} {entry.name} of package {_package(entry)} cannot be used: {without_passwords(why)}"[:500]
    _failures.setdefault(entry.group, {})[entry.name] = text
    _log.warning(text)


def _package(entry: EntryPoint) -> str:
    # The metadata of a broken package may have no name.
    return (entry.dist.name if entry.dist is not None else None) or "?"
