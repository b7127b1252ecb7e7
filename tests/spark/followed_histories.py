"""Random histories of followed tables, and the queries that follow them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias

from hypothesis import note
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.ports import Store, Table
from tests.spark.following import INTERPRETED, Following
from tests.spark.oracles import forget_last_commit
from tests.spark.random_queries import (
    COLUMNS,
    DIMENSIONS,
    TABLES,
    RandomQuery,
    Row,
    aggregate_queries,
    comparable,
    row_queries,
)

KEYS = (("id",), ("region", "id"), ("id", "region"))
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_REGIONS = st.sampled_from(["e", "w"])
_IDS = st.integers(0, 7)
_VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "l": st.integers(-3, 3) | st.integers(-(2**50), 2**50),
    "i": st.integers(-3, 3),
    "s": st.sampled_from(["", "a", "b", "c"]),
    "d": st.sampled_from([0.0, -0.0, 0.1, 0.2, -0.3, 1e16, 1e-16, 1e300, -1e300])
    | st.sampled_from([0.1, 0.7, float("nan"), float("inf"), float("-inf")]),
    "m": st.sampled_from(["0.01", "0.10", "-0.10", "2.50", "99999999.99"]).map(Decimal),
    "b": st.booleans(),
    "happened": st.integers(0, 30 * 60).map(lambda seconds: _BEGIN + timedelta(seconds=seconds)),
    "day": st.integers(1, 5).map(lambda day: date(2026, 1, day)),
}
_NULLABLE = {name: st.none() | values for name, values in _VALUES.items()}
rows_of_tables = st.fixed_dictionaries({"region": _REGIONS, "id": _IDS, **_NULLABLE})


@dataclass(frozen=True)
class Change:
    """A commit to one table, or a split or merge of its partitions.

    Attributes:
        kind: what happens.
        table: the name of the table.
        rows: whole rows to put; of them the key and ``column`` for an update, the key for a delete.
        column: the column that an update sets.
    """

    kind: Literal["put", "update", "delete", "reshape"]
    table: str
    rows: tuple[Row, ...] = ()
    column: str = "l"


Restart: TypeAlias = Literal["goes on", "restart", "repeat"]


@dataclass(frozen=True)
class Step:
    """Changes before the queries are compared.

    Attributes:
        changes: the changes, in order.
        restart: what happens to the queries before the changes: they go on; they stop and start; or, in addition, Spark
            has lost the commit of the last batch and repeats it.
    """

    changes: tuple[Change, ...]
    restart: Restart = "goes on"


@dataclass(frozen=True)
class History:
    """Tables with a primary key, and what happens to them.

    Attributes:
        key: the primary key of the tables.
        steps: the steps. Rows of the first are base data of the tunnels.
        queries: the queries that follow the tables.
        max_rows: the option maxRowsPerTrigger.
    """

    key: tuple[str, ...]
    steps: tuple[Step, ...]
    queries: tuple[RandomQuery, ...]
    max_rows: int | None = None


@st.composite
def changes(draw: st.DrawFn) -> Change:
    kind = draw(st.sampled_from(["put", "put", "put", "update", "delete", "delete", "reshape"]))
    table = draw(st.sampled_from([*TABLES[:1] * 3, TABLES[1]]))
    if kind == "reshape":
        return Change("reshape", table)
    rows = tuple(draw(st.lists(rows_of_tables, min_size=1, max_size=6)))
    return Change(kind, table, rows, draw(st.sampled_from(list(_VALUES))))  # type: ignore[arg-type]


@st.composite
def histories(
    draw: st.DrawFn, *, steps: int = 3, queries: int = 3, fits: Callable[[RandomQuery], bool] = lambda query: True
) -> History:
    """Return a history with a query without aggregates and others with aggregates.

    Args:
        fits: returns whether a query can be followed.
    """
    key = draw(st.sampled_from(KEYS))
    parts = [
        Step(
            tuple(draw(st.lists(changes(), min_size=1, max_size=6))),
            "goes on" if number == 0 else draw(st.sampled_from(["goes on", "goes on", "restart", "repeat"])),
        )
        for number in range(steps)
    ]
    chosen = [
        draw(row_queries(key).filter(fits)),
        *(draw(aggregate_queries().filter(fits)) for _ in range(queries - 1)),
    ]
    return History(key, tuple(parts), tuple(chosen), draw(st.sampled_from([None, None, 7])))


class Tables:
    """The tables of a history in a store, with a model of their rows."""

    def __init__(self, store: Store, key: Sequence[str]) -> None:
        self._tables: dict[str, Table] = {
            name: store.create_table(name, COLUMNS, list(key), pre_images=True) for name in TABLES
        }
        self._key = tuple(key)
        self._rows: dict[str, dict[tuple[Any, ...], Row]] = {name: {} for name in TABLES}

    @property
    def rows(self) -> dict[str, list[Row]]:
        return {name: list(rows.values()) for name, rows in self._rows.items()}

    def apply(self, change: Change) -> None:
        table, model = self._tables[change.table], self._rows[change.table]
        if change.kind == "put":
            table.put(list(change.rows))
            model.update((self._key_of(row), row) for row in change.rows)
        elif change.kind == "delete":
            table.delete([{name: row[name] for name in self._key} for row in change.rows])
            for row in change.rows:
                model.pop(self._key_of(row), None)
        elif change.kind == "update":
            # An update sets a column of rows that exist; others would need values for columns that cannot be null.
            present = [row for row in change.rows if self._key_of(row) in model]
            if present:
                table.update([{name: row[name] for name in (*self._key, change.column)} for row in present])
            for row in present:
                key = self._key_of(row)
                model[key] = {**model[key], change.column: row[change.column]}
        else:
            self._reshape(table)

    def _key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    def _reshape(self, table: Table) -> None:
        """Split the table, or merge its partitions."""
        partitions = sorted((each for each in table.describe().partitions if each.open), key=lambda p: p.keys.low or ())
        if len(partitions) > 1:
            table.merge(partitions[0].id, partitions[1].id)
        elif (table.describe().rows or 0) > 1:
            table.split(partitions[0].id)


@dataclass
class Run:
    """A history that runs: the tables, and a query in Spark for each of its queries.

    Attributes:
        store: the store of the tables.
        sink: the store of the targets.
        sink_options: options that open it.
        prefix: the beginning of the targets' names.
    """

    spark: SparkSession
    history: History
    store: Store
    sink: Store
    directory: Path
    sink_options: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def check(self) -> None:
        """Run the history, and compare the targets after each step."""
        history = self.history
        tables = Tables(self.store, history.key)
        with ExitStack() as stack:
            running: list[Following] = []
            for step in history.steps:
                for following in running:
                    self._restart(following, step.restart)
                for change in step.changes:
                    tables.apply(change)
                if not running:
                    running = [stack.enter_context(self._following(query)) for query in history.queries]
                for following in running:
                    if following.query is None:
                        following.start()
                for following, query in zip(running, history.queries, strict=True):
                    note(query.sql)
                    assert comparable(following.advance()) == query.expected(tables.rows)

    def _following(self, query: RandomQuery) -> Following:
        target = f"{self.prefix}t{uuid.uuid4().hex[:10]}"
        self.sink.create_table(target, query.columns, list(query.key))
        options = {} if self.history.max_rows is None else {"maxRowsPerTrigger": self.history.max_rows}
        return Following(
            self.spark,
            self.store,
            query.sql,
            query.tables,
            target,
            self.directory,
            sink=self.sink,
            options=options,
            arguments={"options": self.sink_options},
        )

    def _restart(self, following: Following, how: Restart) -> None:
        if how == "goes on":
            return
        following.restart()
        if how == "repeat":
            forget_last_commit(self.directory / following.target.replace("/", "_"))


def prepare(spark: SparkSession) -> None:
    """Create the static table of the queries. Let Spark interpret its plans."""
    spark.createDataFrame(DIMENSIONS, "code string, zone string").createOrReplaceTempView("dimensions")
    for name, value in {"spark.sql.shuffle.partitions": "1", **INTERPRETED}.items():
        spark.conf.set(name, value)
