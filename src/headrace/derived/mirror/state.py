"""`MirrorState`: what the next batch of a mirror follows, and what its publication changes besides rows."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from headrace.batches.sinks.jobs import TargetJobs
from headrace.derived.mirror.evolution import Evolution, SourceColumn, difference, source_columns
from headrace.derived.mirror.forms import MirrorForm, newer_source
from headrace.errors import SchemaError, own_message
from headrace.ports import Claim, Store, Table
from headrace.rows.from_user import no_value

COLUMNS = "columns of the source, with their numbers"
"""The part of a mirror's definition with the `SourceColumn` of the last published batch."""
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class MirrorState:
    """A mirror as of its last published batch; or as of the batch that is published next.

    Attributes:
        form: what the mirror keeps.
        tunnel: the id of the tunnel.
        evolution: what happens after changes of the source's columns.
        columns: the columns of the source.
        claim: the claim of the mirror on its target, for the next publication.
    """

    form: MirrorForm
    tunnel: str
    evolution: Evolution
    columns: tuple[SourceColumn, ...]
    claim: Claim

    def as_of_now(self, source: Store, table: Table, target: Store, relaxed: Collection[str] = ()) -> Self:
        """Return the state of the next batch, with the columns of the source now and what they change in the target.

        Args:
            source: the store of the source; ``table`` is the source.
            relaxed: columns that the source says are NOT NULL, and of which changes were null; see `relaxed_column`.

        Raises:
            SchemaError, UnsupportedError: the mirror does not follow a change.
        """
        schema, numbers = table.numbered_schema()
        schema.check_keyed()
        columns = source_columns(schema, numbers)
        form = replace(self.form, source=schema)
        if columns == self.columns and not relaxed:
            return replace(self, form=form)
        change = difference(self.columns, columns)
        change = replace(change, relaxed=[*change.relaxed, *(name for name in relaxed if name in schema)])
        if change:
            self.evolution.check(change, table.name, target)
            tunnel = source.tunnel(self.tunnel, table.name)
            form = replace(form, alterations=self.evolution.alterations(change, form, target, tunnel))
            if form.alterations and not target.capabilities.evolves:
                raise SchemaError(
                    "the source of the mirror has other columns, and its target's store changes none in a batch",
                    received=str(change),
                    remedy="start the mirror again: it adds new columns to its target, and reads this batch again",
                )
            _log.info("the columns of table %s have changed: %s", table.name, change)
        claim = TargetJobs(target).redefined(self.claim, {COLUMNS: json.dumps(columns)})
        return replace(self, form=form, columns=columns, claim=claim)

    def relaxed_column(self, error: BaseException) -> str | None:
        """Return the column because of which the target has refused rows, if the source had nulls in it for a time.

        A column that gets values before it becomes NOT NULL is null in changes of before. If the source has made it so
        between two batches, or once more, no definition that a batch has seen says that it may be null.
        """
        text = str(error)
        message = own_message(text) or text
        names = [
            each.name for each in self.columns if not each.nullable and each.name not in self.form.source.primary_key
        ]
        return next((name for name in names if message.startswith(no_value(name))), None)

    def check_read(self, columns: tuple[SourceColumn, ...]) -> None:
        """Check that rows have the values of these columns, and not of others with the same names and types.

        Args:
            columns: the columns of the source at the other end of the time in which the rows were read.

        Raises:
            SchemaError: the source has got other columns meanwhile, see `headrace.derived.mirror.forms.newer_source`.
        """
        if columns != self.columns:
            read, known = ([f"{each.name} (number {each.number})" for each in some] for some in (columns, self.columns))
            raise newer_source(read, known)

    def published(self) -> Self:
        """Return the state after the publication of the batch."""
        form = replace(self.form, alterations={})
        return replace(self, form=form, claim=Claim(self.claim.table, self.claim.after, self.claim.after))
