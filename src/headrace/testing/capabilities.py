"""What a test needs of its store: capabilities, and traits that only tests know."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

from headrace.model.types import is_one_of, parse_type
from headrace.ports import Capabilities, Store

Value = TypeVar("Value")


@dataclass(frozen=True)
class Traits:
    """Differences between kinds of stores that only tests know, besides the `Capabilities`.

    Attributes:
        split_partitions: a user can split and merge partitions.
        any_names: tables and columns may have any name that is not empty.
        nul_in_text: strings can contain the character NUL. Otherwise a write of such a string fails with `SchemaError`.
        tells_changes: `Store.wait_for_change` can detect that there was no commit.
        logs_calls: the log has each write as it was called: it distinguishes a put from an update, an update names the
            cells that it set, and several rows of a key in one call are several changes. Otherwise a new row is an
            INSERT, any other write a REPLACE with the whole row, of several rows of a key the last one is logged, and a
            put of a row that has only a key is no change if the row exists.
        returns_versions: a write returns the commit version of its changes.
        starts_in_past: a new tunnel can start at changes from before its creation.
        logs_equal_rows: a put of a row as it is, is a change.
        forks: a forked process can use the handles of its parent.
        schemas: tables are in schemas: `public.t` is table `t`.
        partition_sizes: queues know the size of each partition; otherwise it is estimated from the size of the queue.
        own_versions: each table has versions of its own. Otherwise they rise over all tables of the store.
    """

    split_partitions: bool = False
    any_names: bool = False
    nul_in_text: bool = True
    tells_changes: bool = False
    logs_calls: bool = True
    returns_versions: bool = True
    starts_in_past: bool = True
    partition_sizes: bool = True
    logs_equal_rows: bool = True
    forks: bool = True
    schemas: bool = False
    own_versions: bool = False


# The traits of the stores that tests have opened.
TRAITS: dict[type[Store], Traits] = {}


def traits(store: Store) -> Traits:
    """Return the traits of a store's kind."""
    return TRAITS[type(store)]


def lacking(item: pytest.Item, capabilities: Capabilities, traits: Traits) -> list[str]:
    """Return what a test needs and a store does not have.

    A test declares it by the marks ``needs``, with names of `headrace.ports.Capabilities` and `Traits`, ``needs_type``,
    with types of columns, and ``needs_key_type``, with types of key columns.
    """
    names = [name for mark in item.iter_markers("needs") for name in mark.args]
    kinds = [kind for mark in item.iter_markers("needs_type") for kind in mark.args]
    keys = [kind for mark in item.iter_markers("needs_key_type") for kind in mark.args]
    return [
        *(name for name in names if not getattr(traits if hasattr(traits, name) else capabilities, name)),
        *(f"columns of type {kind}" for kind in kinds if not _has_type(capabilities, kind)),
        *(f"keys of type {kind}" for kind in keys if not _has_key_type(capabilities, kind)),
    ]


def types(kinds: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of a test for each of some column types; see `lacking`."""
    return [pytest.param(kind, marks=pytest.mark.needs_type(kind)) for kind in kinds]


def key_types(kinds: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of a test for each of some types of key columns; see `lacking`."""
    return [pytest.param(kind, marks=pytest.mark.needs_key_type(kind)) for kind in kinds]


def has_type(store: Store, kind: str) -> bool:
    """Return whether columns of the store can have a type."""
    return _has_type(store.capabilities, kind)


def has_key_type(store: Store, kind: str) -> bool:
    """Return whether key columns of the store can have a type."""
    return _has_key_type(store.capabilities, kind)


def _has_type(capabilities: Capabilities, kind: str) -> bool:
    return capabilities.column_types is None or kind in capabilities.column_types


def _has_key_type(capabilities: Capabilities, kind: str) -> bool:
    return _has_type(capabilities, kind) and is_one_of(parse_type(kind), capabilities.key_types)


def storable(store: Store, values: Iterable[Value]) -> list[Value]:
    """Return the values that the store can have: those without the character NUL, if its strings cannot contain it.

    Args:
        values: values of columns, or keys, rows and lists of such values.
    """
    return [value for value in values if traits(store).nul_in_text or not _has_nul(value)]


def _has_nul(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value
