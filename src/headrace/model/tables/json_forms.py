"""The forms of the values of rows that are JSON. No I/O."""

from __future__ import annotations

import enum
from dataclasses import dataclass

UNAVAILABLE = "__debezium_unavailable_value"
"""Debezium's text for a value that the log does not have, because it is large and an update did not change it."""


class Decimals(enum.StrEnum):
    """The form of decimals; the names of Debezium's option ``decimal.handling.mode``."""

    PRECISE = "precise"
    """The bytes of the unscaled integer, big-endian, in base64."""
    STRING = "string"
    DOUBLE = "double"
    """A number of JSON, with all its digits. A reader of JSON may round it."""


@dataclass(frozen=True)
class JsonForm:
    """The form of values.

    Attributes:
        debezium: dates, times and timestamps without a time zone are numbers since 1970, as Debezium writes them by
            default; values that the log does not have are `UNAVAILABLE`. Otherwise they are texts of ISO 8601, and a
            value that the log does not have is an error.
        decimals: the form of decimals.
    """

    debezium: bool = False
    decimals: Decimals = Decimals.DOUBLE


PLAIN = JsonForm()


@dataclass(frozen=True)
class Origin:
    """A database as Debezium's change events name it: the connector, such as ``postgresql``, and the database."""

    connector: str = ""
    database: str = ""
