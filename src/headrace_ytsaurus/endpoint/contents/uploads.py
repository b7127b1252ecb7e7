"""The attributes of a path for a write to a table or file: ``append``, ``schema``, ``sorted_by``; and the lock."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.parameters import flag_of
from headrace_ytsaurus.endpoint.tables.state import Schema
from headrace_ytsaurus.endpoint.transactions.locks import EXCLUSIVE, SHARED
from headrace_ytsaurus.wire.paths import YPath
from headrace_ytsaurus.wire.yson.scalars import as_text


@dataclass(frozen=True)
class Upload:
    """A write to a static table.

    Attributes:
        append: the rows are appended.
        schema: the table's schema after the write.
    """

    append: bool
    schema: Schema

    @property
    def lock(self) -> str:
        """The mode of the lock. Several transactions can append to one table, unless it is sorted."""
        return SHARED if self.append and not self.schema.key_names else EXCLUSIVE


def appends(path: YPath) -> bool:
    """Return whether a path has the attribute ``append``."""
    return flag_of(path.attributes.get("append", False), 'attribute "append" of the path')


def upload_of(path: YPath, schema: Schema) -> Upload:
    """Return the write that a path describes, to a table with a schema.

    Raises:
        YtError: the attributes of the path are incompatible with each other or with the schema.
    """
    append, by, given = appends(path), _sorted_by(path), path.attributes.get("schema")
    for name, in_path in (("append", append), ("sorted_by", by is not None)):
        if in_path and given is not None:
            raise refused(f'YPath attributes "{name}" and "schema" are not compatible', received=path.text)
    if given is not None:
        return Upload(append, Schema.parse(given).of_bytes)
    if not schema.columns:
        return Upload(append, dataclasses.replace(schema, sorted_by=by or ()))
    if by is not None and by != schema.key_names:
        raise refused(
            'YPath attribute "sorted_by" must be compatible with the schema of the table',
            received=", ".join(by),
            valid=", ".join(schema.key_names) or "none: the table is not sorted",
        )
    return Upload(append, schema)


def check_keys(upload: Upload, schema: Schema) -> None:
    """Raise an error if rows are appended to rows with another sort order."""
    by = upload.schema.sorted_by
    if upload.append and schema.sorted_by[: len(by)] != by:
        raise refused(
            "Key columns mismatch while trying to append sorted data into a non-empty table",
            received=", ".join(by),
            valid=", ".join(schema.sorted_by) or "none: the rows of the table are not sorted",
        )


def _sorted_by(path: YPath) -> tuple[str, ...] | None:
    given = path.attributes.get("sorted_by")
    if given is None:
        return None
    if not isinstance(given, list):
        raise refused('The attribute "sorted_by" of a path is a list', received=repr(given)[:100])
    return tuple(_key_name(each) for each in given) or None


def _key_name(given: Any) -> str:
    if isinstance(given, Mapping) and given.get("sort_order", "ascending") == "ascending":
        given = given.get("name")
    name = as_text(given)
    if not name:
        raise refused(
            'The attribute "sorted_by" of a path names columns',
            received=repr(given)[:100],
            valid="names, or maps with name and sort_order=ascending",
        )
    return name
