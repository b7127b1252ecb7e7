"""What the state of a followed query consists of, as the job of its target records it, for the next text of the query.

The record says in which order the query reads its scans, because Spark keeps one position for each place in that order,
and which columns each arrangement has. A new text keeps the arrangements that have all that it needs.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.batches.sinks.jobs import state_name
from headrace.derived.follow.batch_content import BatchQuery
from headrace.derived.follow.scans import FollowedScan
from headrace.derived.gathering.arrangements import Arranged, Gathering
from headrace.derived.state.state_tables import StateTable
from headrace.model.types import type_name
from headrace.ports import Store
from headrace.spark.versions import arrow_schema


@dataclass(frozen=True)
class Arrangement:
    """A table of state with the rows of a followed table by a key.

    Attributes:
        table: the name of the table of state.
        scan: the name of the scan, in lower case.
        key: the columns of the lookup.
        columns: the names of types of the kept columns, by name, in order.
    """

    table: str
    scan: str
    key: tuple[str, ...]
    columns: Mapping[str, str]


@dataclass(frozen=True)
class StateLayout:
    """The tables of state of a followed query.

    Attributes:
        scans: the names of its scans and the marks of their tables, in the order in which Spark reads them. Empty in
            records of earlier releases.
        generation: how many texts the query had before.
        attempt: a text that is new each time when a text is computed, so that processes that replace the text at the
            same time have tables of their own; empty for the first text.
        names: the names of the tables of state by role, as far as they are not those of this generation.
        arrangements: the recorded arrangements.
        numbers: the numbers of the columns of scans, by scan in lower case: a column keeps its number under each name.
    """

    scans: tuple[tuple[str, str], ...] = ()
    generation: int = 0
    attempt: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    arrangements: tuple[Arrangement, ...] = ()
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> StateLayout:
        """Read the content of `to_json`."""
        return cls(
            tuple((name, mark) for name, mark in content.get("scans", ())),
            int(content.get("generation", 0)),
            str(content.get("attempt", "")),
            dict(content.get("names", {})),
            tuple(
                Arrangement(each["table"], each["scan"], tuple(each["key"]), dict(each["columns"]))
                for each in content.get("arrangements", ())
            ),
            {scan: dict(numbers) for scan, numbers in content.get("numbers", {}).items()},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "scans": [list(each) for each in self.scans],
            "generation": self.generation,
            "attempt": self.attempt,
            "names": dict(self.names),
            "arrangements": [
                {"table": each.table, "scan": each.scan, "key": list(each.key), "columns": dict(each.columns)}
                for each in self.arrangements
            ],
            "numbers": {scan: dict(numbers) for scan, numbers in self.numbers.items()},
        }

    # -- scans ----------------------------------------------------------------------------------------------

    def ordered(self, scans: Sequence[FollowedScan]) -> tuple[FollowedScan, ...] | None:
        """Return scans in the recorded order; None if the record has other scans, or other tables under their names."""
        if not self.scans and len(scans) == 1:
            return tuple(scans)
        known = {scan.name.lower(): scan for scan in scans}
        found = [known.get(name.lower()) for name, _ in self.scans]
        same = len(found) == len(scans) and all(
            scan is not None and scan.mark == mark for scan, (_, mark) in zip(found, self.scans, strict=True)
        )
        return tuple(scan for scan in found if scan is not None) if same else None

    def reading(self, scans: Sequence[FollowedScan]) -> StateLayout:
        """Return the layout of a query that reads scans in some order."""
        return replace(
            self,
            scans=tuple((scan.name, scan.mark) for scan in scans),
            numbers={scan.name.lower(): scan.numbers for scan in scans},
        )

    def exchanged(self, scan: FollowedScan) -> set[str]:
        """Return the names of columns that are other columns of the table than those of the record."""
        known = self.numbers.get(scan.name.lower(), {})
        return {name for name, number in scan.numbers.items() if known.get(name, number) != number}

    # -- tables of state ------------------------------------------------------------------------------------

    def prefix(self, store: Store, target: str, job: str) -> str:
        """Return the beginning of the names of the tables of this generation."""
        text = f"{job}-{self.generation}{self.attempt}" if self.generation else job
        return f"{state_name(store, target, text)}_"

    def state(self, store: Store, target: str, job: str, query: BatchQuery) -> dict[str, StateTable]:
        """Return the tables of state of a query by role."""
        found = query.state(self.prefix(store, target, job))
        return {role: replace(table, name=self.names.get(role, table.name)) for role, table in found.items()}

    def following(
        self,
        scans: Sequence[FollowedScan],
        gathering: Gathering | None,
        covering: Mapping[str, Sequence[Arrangement]],
    ) -> StateLayout:
        """Return the layout of the next text, which keeps the arrangements whose keys it needs; see `arranged`."""
        tables = {} if gathering is None else gathering.tables
        kept = {
            role: each.table
            for scan, arranged in tables.items()
            for role, key in arranged.roles.items()
            for each in covering.get(scan, ())
            if each.key == key
        }
        return StateLayout((), self.generation + 1, uuid.uuid4().hex, kept).reading(scans)

    def recorded(self, state: Mapping[str, StateTable], gathering: Gathering | None) -> StateLayout:
        """Return the layout with the arrangements of some tables of state."""
        tables = {} if gathering is None else gathering.tables
        arrangements = tuple(
            Arrangement(
                state[role].name,
                scan,
                key,
                _names(arranged.schema),
            )
            for scan, arranged in tables.items()
            if gathering is not None and scan not in gathering.inner
            for role, key in arranged.roles.items()
        )
        return replace(self, arrangements=arrangements)

    def arranged(
        self, gathering: Gathering, scans: Sequence[FollowedScan]
    ) -> tuple[Gathering, dict[str, list[Arrangement]]]:
        """Return a gathering with the columns of the recorded arrangements where these have all that it needs.

        Also return these arrangements, by scan. Scans without any need the columns of the gathering.
        """
        tables: dict[str, Arranged] = dict(gathering.tables)
        covering: dict[str, list[Arrangement]] = {}
        for scan in scans:
            name, types = scan.name.lower(), arrow_schema(scan.schema)
            found = [each for each in self.arrangements if each.scan == name]
            wanted = gathering.tables[name]
            # All arrangements of a scan have the same columns.
            if not found or self.exchanged(scan) & found[0].columns.keys():
                continue
            if _names(wanted.schema).items() <= found[0].columns.items() <= _names(types).items():
                tables[name] = replace(wanted, schema=pa.schema([types.field(column) for column in found[0].columns]))
                covering[name] = found
        return replace(gathering, tables=tables), covering


def _names(schema: pa.Schema) -> dict[str, str]:
    return {each.name: type_name(each.type) for each in schema}
