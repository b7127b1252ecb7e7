"""Masks: what the rows of a tunnel have in place of the values of a column. No I/O.

A mask is deterministic, so equal values stay equal, and a repeated batch has the same rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError
from headrace.model.types import type_name

VALID: Final = ("null", "hash", "first(3)", "last(4)", "constant(…)")
_FORM: Final = re.compile(r"(null|hash)|(first|last)\(([1-9][0-9]{0,3})\)|(constant)\((.*)\)", re.DOTALL)
_DIGEST_BYTES: Final = 16


class Mask(NamedTuple):
    """A mask of a column.

    Attributes:
        kind: ``null`` and ``constant`` need no value; ``hash``, ``first`` and ``last`` are made of the value.
        argument: the number of characters, or the constant.
    """

    kind: str
    argument: str = ""

    @classmethod
    def parse(cls, column: str, text: object) -> Mask:
        """Return the mask of a text such as ``last(4)``."""
        form = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if form is None:
            raise OptionError(f"unknown mask of column {column!r}", received=repr(text)[:80], valid=VALID)
        return cls(form[1] or form[2] or form[4], form[3] or form[5] or "")

    @property
    def reads(self) -> bool:
        """Whether the mask is made of the value."""
        return self.kind in ("hash", "first", "last")

    def type_of(self, column: str, data_type: pa.DataType) -> pa.DataType:
        """Return the type of masked values of a type.

        Raises:
            OptionError: the mask does not fit the type.
        """
        is_text = data_type == pa.string()
        if self.kind == "null":
            return data_type
        if self.kind == "constant":
            self._constant(column, data_type)
            return data_type
        if self.kind == "hash" and (is_text or data_type == pa.binary() or pa.types.is_integer(data_type)):
            return pa.string()
        if self.kind != "hash" and is_text:
            return data_type
        raise OptionError(
            f"mask {self.kind} does not fit column {column!r}",
            received=type_name(data_type),
            valid="hash for strings, integers and binaries; first and last for strings; null and constant for all",
        )

    def applied(self, values: pa.Array, key: bytes) -> pa.Array:
        """Return values masked; null stays null.

        Args:
            key: the key of hashes.
        """
        if self.kind == "first":
            return pc.utf8_slice_codeunits(values, 0, int(self.argument))
        if self.kind == "last":
            return pc.utf8_slice_codeunits(values, -int(self.argument))
        # Each distinct value once: Arrow has no hashes with a key.
        encoded = (values.cast(pa.string()) if pa.types.is_integer(values.type) else values).dictionary_encode()
        digests = [
            hashlib.blake2b(each.encode() if isinstance(each, str) else each, key=key, digest_size=_DIGEST_BYTES)
            for each in encoded.dictionary.to_pylist()
        ]
        return pa.array([digest.hexdigest() for digest in digests], pa.string()).take(encoded.indices)

    def repeated(self, column: str, rows: int, data_type: pa.DataType) -> pa.Array:
        """Return the values of rows by a mask that needs no value."""
        return pa.nulls(rows, data_type) if self.kind == "null" else pa.repeat(self._constant(column, data_type), rows)

    def _constant(self, column: str, data_type: pa.DataType) -> pa.Scalar:
        try:
            return pa.array([self.argument]).cast(data_type)[0]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise OptionError(
                f"the constant does not fit column {column!r}",
                received=repr(self.argument)[:80],
                valid=type_name(data_type),
            ) from None


class Masked(NamedTuple):
    """A masked column: its mask, and the type of its values in the table."""

    mask: Mask
    type: pa.DataType


def parse_masks(given: object) -> dict[str, Mask]:
    """Return the masks of columns by their names."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(
            "option mask needs a mask for each of its columns", received=repr(given)[:80], valid="{column: mask}"
        )
    return {name: Mask.parse(name, text) for name, text in given.items()}
