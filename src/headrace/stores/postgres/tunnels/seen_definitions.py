"""The definitions of a tunnel's tables that were seen, in table ``headrace.definition``, and what was lost in between.

Each change of the catalog that a call notices is a further version. Changes that the log does not have, such as the
rows of a partition that is detached, are recorded with it: each read fails with their names until they are accepted.

A store keeps what was seen last for later objects of the tunnel, as long as the catalog is the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from headrace.errors import DataLossError, StoreBusyError
from headrace.stores.postgres.failures import COPIES
from headrace.stores.postgres.tunnels import catalog, definitions, followable, partition_truncations
from headrace.stores.postgres.tunnels.catalog import TableState
from headrace.stores.postgres.tunnels.definitions import Definition, Leaf
from headrace.stores.postgres.tunnels.followable import Inspected
from headrace.stores.postgres.tunnels.histories import History
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.snapshots import Snapshot
from headrace.wire.pgoutput.messages import Relation, WrittenLeaf

_DELIVERED = """
SELECT EXISTS (SELECT FROM headrace.channel WHERE tunnel = %(tunnel)s AND committed <> start)
    OR EXISTS (SELECT FROM headrace.batch_plan WHERE tunnel = %(tunnel)s)
"""
# The slot and its position; the tunnel is locked.
_LOCKED = """
SELECT t.slot, s.confirmed_flush_lsn - '0/0' FROM headrace.tunnel t
LEFT JOIN pg_replication_slots s ON s.slot_name = t.slot WHERE t.id = %s FOR NO KEY UPDATE OF t
"""
# The log has a commit some moments before it is visible, with a synchronous standby longer; in seconds.
_VISIBLE_SECONDS, _PAUSE = 30.0, 0.005
# The limit, for a database with many tunnels.
_MOST_KEPT = 100


@dataclass
class _Seen:
    """What a look at the tables has found, as one value: threads may read the former one meanwhile.

    Attributes:
        states: the tables that exist.
        versions: the versions of the definition of each table, as JSON.
        histories: the histories of tables, as far as they were needed.
    """

    states: Mapping[int, TableState]
    versions: Mapping[int, list[str]]
    lost: list[str]
    inspected: Inspected
    histories: dict[int, History] = field(default_factory=dict)


class _NewFile(NamedTuple):
    """A new file of a partition: the partitioned table, and the transaction that has made it."""

    root: int
    xid: int | None


class _NewLeaf(NamedTuple):
    """A partition that is new, or has a new file for new types: the partitioned table, and its own oid.

    Attributes:
        xid: what was done by transactions before it, a look has seen.
    """

    root: int
    oid: str
    xid: int


class _LeftLeaf(NamedTuple):
    """A partition with rows in the log that no look has seen: the partitioned table, and its own oid."""

    root: int
    oid: str


_Partition: TypeAlias = _NewFile | _NewLeaf | _LeftLeaf


class _UnknownError(Exception):
    """It is not known what a TRUNCATE has done to partitions; see ``whole`` of `SeenDefinitions._record`."""

    def __init__(self, partitions: Sequence[_Partition]) -> None:
        super().__init__(partitions)
        self.partitions = partitions


class SeenDefinitions:
    """The versions of the definitions of a tunnel's tables.

    Args:
        tunnel: the id of the tunnel.
        relations: the oids of its tables.
        as_columns: whether the columns of the table are columns of the changes.
        part: returns the part of a definition that the tunnel has, by those before; None if it has all.
    """

    def __init__(
        self,
        database: TunnelDatabase,
        tunnel: str,
        relations: Sequence[int],
        *,
        as_columns: bool = False,
        part: Callable[[Definition, Sequence[Definition]], Definition] | None = None,
    ) -> None:
        self._database = database
        self._tunnel = tunnel
        self._relations = relations
        self._as_columns = as_columns
        self._part = part or (lambda whole, before: whole)
        self._seen = _Seen({}, {}, [], Inspected([], []))
        # Partitions that have left → the LSN from which on the log has no rows of them.
        self._unwritten = dict[WrittenLeaf, int]()

    @property
    def states(self) -> Collection[TableState]:
        """The tables that exist, at the time of the last `refresh`."""
        return self._seen.states.values()

    def state(self, relation: int) -> TableState | None:
        return self._seen.states.get(relation)

    def read_states(self) -> list[TableState]:
        """Return the tables that exist now."""
        return self._database.ask(lambda statements: catalog.states(statements, self._relations))

    def refresh(self) -> bool:
        """Read the states of the tables, and their definitions if they have changed; return whether they have."""
        states = {state.relation: state for state in self.read_states()}
        if states and states == self._seen.states:
            return False
        kept, key = self._database.connection.definitions, (self._tunnel, self._as_columns)
        known: _Seen | None = kept.get(key)
        if known is not None and states and states == known.states:
            self._seen = known
            return True
        rows = self._look(states)
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        self._seen = kept[key] = _Seen(states, _by_relation(rows), _lost(rows), self._inspect(list(states)))
        return True

    def look(self) -> None:
        """Record the present definitions like `refresh`, and keep those of the last one."""
        states = {state.relation: state for state in self.read_states()}
        if states != self._seen.states:
            self._look(states)

    def _look(self, states: Mapping[int, TableState]) -> list[tuple[int, str, str, str]]:
        """Record the definitions of tables whose states are others than the recorded ones; return all rows."""
        # The states are older than the definitions: a change between the two is noticed at the next call.
        rows = self._database.ask(self._rows)
        latest = {relation: state for relation, state, _, _ in rows}
        changed = [relation for relation, state in states.items() if latest.get(relation) != state.state]
        return self._recorded(changed) if changed else rows

    def forget(self) -> None:
        """Let the next `refresh` read all definitions."""
        self._seen.states = {}

    def _inspect(self, relations: list[int]) -> Inspected:
        return self._database.ask(
            lambda statements: followable.inspect(statements, relations, as_columns=self._as_columns)
        )

    def _rows(self, statements: PostgresStatements) -> list[tuple[int, str, str, str]]:
        return statements.execute(
            "SELECT relation::bigint, state, content, lost FROM headrace.definition WHERE tunnel = %s ORDER BY seq",
            (self._tunnel,),
        ).fetchall()

    def record(self, existing_slot: str | None = None) -> None:
        """Record the first version of all tables.

        Args:
            existing_slot: the slot of the tunnel, if it may have older changes.
        """
        self._database.run(lambda statements: self.record_in(statements, existing_slot))

    def record_in(self, statements: PostgresStatements, existing_slot: str | None = None) -> None:
        """Record the first version of all tables like `record`, inside the caller's transaction."""
        base_types = catalog.base_types(self._database, self._relations)
        self._record(statements, self._relations, base_types, existing_slot)

    def _recorded(
        self, relations: Sequence[int], written: Sequence[WrittenLeaf] = ()
    ) -> list[tuple[int, str, str, str]]:
        """Record the present definitions of some tables; return all rows."""
        base_types, whole = catalog.base_types(self._database, relations), dict[_Partition, bool]()
        while True:
            try:
                return self._database.run(
                    lambda statements: self._record(statements, relations, base_types, whole=whole, written=written)
                )
            except _UnknownError as unknown:
                # A slot is read in no transaction that writes.
                for root in {each.root for each in unknown.partitions}:
                    of_root = [each for each in unknown.partitions if each.root == root]
                    files = [each for each in of_root if isinstance(each, _NewFile)]
                    leaves = [each for each in of_root if isinstance(each, _NewLeaf)]
                    left = [each for each in of_root if isinstance(each, _LeftLeaf)]
                    if files:
                        known = partition_truncations.of_whole_table(self._database, self._tunnel, root)
                        whole.update({each: each.xid in known for each in files})
                    if leaves:
                        oids, since = [int(each.oid) for each in leaves], leaves[0].xid
                        alone = partition_truncations.alone(self._database, self._tunnel, root, oids, since)
                        whole.update({each: int(each.oid) not in alone for each in leaves})
                    if left:
                        oids = [int(each.oid) for each in left]
                        emptied = partition_truncations.emptied(self._database, self._tunnel, root, oids)
                        whole.update({each: int(each.oid) in emptied for each in left})

    def _record(
        self,
        statements: PostgresStatements,
        relations: Sequence[int],
        base_types: Mapping[int, int],
        existing_slot: str | None = None,
        whole: Mapping[_Partition, bool] | None = None,
        written: Sequence[WrittenLeaf] = (),
    ) -> list[tuple[int, str, str, str]]:
        """Record the present definitions of some tables; return all rows.

        Args:
            whole: for new files of partitions, whether they are those of a TRUNCATE of the whole table; for new
                partitions and new types, whether none was truncated without it; for partitions that have left, whether
                it has deleted all their rows.
            written: partitions with rows in the log, which may have left the tables.

        Raises:
            _UnknownError: that is not known of a partition.
        """
        # Processes record one after the other.
        tunnel = statements.first(_LOCKED, (self._tunnel,))
        rows = self._rows(statements)
        before = _by_relation(rows)
        latest = {relation: (state, lost) for relation, state, _, lost in rows}
        delivered = statements.first(_DELIVERED, {"tunnel": self._tunnel})
        definitions_now = catalog.definitions(statements, relations, base_types)
        # After the definitions, so that a change between the two counts as newer than the slot.
        late = set() if existing_slot is None else catalog.newer_than_slot(statements, relations, existing_slot)
        for relation, (state, seen) in definitions_now.items():
            versions = [Definition.parse(content) for content in before.get(relation, ())]
            now = self._part(seen, versions)._replace(late=relation in late)
            former, lost = latest.get(relation, (None, "[]"))
            left = _left_unseen(versions, now, [each for each in written if each.root == relation])
            if former == state and not left:
                continue
            if versions and not now.key:
                # Reads fail until the table has a primary key again, which is compared with the former one.
                now = now._replace(key=versions[-1].key, constraint=versions[-1].constraint)
            # Without a stream, rows are those of the time when they were read.
            if versions and tunnel is not None and tunnel[0] is not None:
                new = _losses(
                    statements,
                    relation,
                    versions,
                    now,
                    left,
                    delivered=bool(delivered and delivered[0]),
                    whole=whole or {},
                )
                lost = json.dumps([*json.loads(lost), *(f"table {now.name}: {each}" for each in new)])
                departed = dict.fromkeys([*versions[-1].leaves.keys() - now.leaves.keys(), *left], now.since or 0)
                now = now._replace(left=versions[-1].left_after(int(tunnel[1] or 0)) | departed)
            row = {"tunnel": self._tunnel, "relation": relation, "former": former, "state": state, "lost": lost}
            if versions and versions[-1].has_columns_of(now):
                statements.execute(
                    "UPDATE headrace.definition SET state = %(state)s, content = %(content)s, lost = %(lost)s"
                    " WHERE tunnel = %(tunnel)s AND relation = %(relation)s AND state = %(former)s",
                    {**row, "content": versions[-1].seen_again(now).text},
                )
                continue
            if versions:
                now = now._replace(new_file=definitions.rewritten(versions[-1], now))
                # Only the last version is compared with the present partitions.
                statements.execute(
                    "UPDATE headrace.definition SET content = %(content)s, lost = '[]'"
                    " WHERE tunnel = %(tunnel)s AND relation = %(relation)s AND state = %(former)s",
                    {**row, "content": versions[-1]._replace(leaves={}, left={}).text},
                )
            statements.execute(
                "INSERT INTO headrace.definition (tunnel, relation, state, content, lost)"
                " VALUES (%(tunnel)s, %(relation)s, %(state)s, %(content)s, %(lost)s) ON CONFLICT DO NOTHING",
                {**row, "content": now.text},
            )
        return self._rows(statements)

    def history(self, relation: int) -> History:
        """Return the versions of the definition of a table that exists."""
        seen = self._seen
        if relation not in seen.histories:
            seen.histories[relation] = History([Definition.parse(text) for text in seen.versions.get(relation, ())])
        return seen.histories[relation]

    def check(self) -> None:
        """Check that the tables can be followed, and that nothing was lost between their definitions.

        Raises:
            UnsupportedError: a table cannot be followed any more.
            DataLossError: rows have changed without changes in the log.
        """
        seen = self._seen
        if seen.inspected.refusals:
            # The rights of a role are in no state of a table.
            seen.inspected = self._inspect(list(seen.states))
        for refusal in seen.inspected.refusals:
            raise refusal.error
        if seen.lost:
            # Another process may have accepted it.
            seen.lost = _lost(self._database.ask(self._rows))
        if seen.lost:
            raise DataLossError(
                "rows of a followed table have changed, and the log does not contain it",
                received="; ".join(seen.lost),
                remedy="create a new tunnel of kind BaseAndStream, or continue with failOnDataLoss=false, after which "
                "rows that were read before may differ from those of the table" + COPIES,
            )

    def know(self, relation: int, leaves: Collection[int]) -> bool:
        """Return whether the definition of a table has all of some partitions."""
        return not leaves or {str(each) for each in leaves} <= self.history(relation).now.leaves.keys()

    def check_leaves(self, leaves: Sequence[WrittenLeaf], start: int) -> None:
        """Check that no look has missed a partition with rows in the log: the log does not say that it has left.

        A partition that a look has seen is compared with the partitions of the next one.

        Args:
            start: the LSN from which the log is read; a reader can begin behind the description of a partition.

        Raises:
            DataLossError: a partition was detached or dropped before a look at the tables.
        """
        unseen = [
            each
            for each in leaves
            if not self.history(each.root).now.accounts_for(each.leaf.oid, each.transaction.lsn)
            and self._unwritten.get(each, start + 1) > start
        ]
        if not unseen:
            return
        self._wait_for([each.transaction.xid for each in unseen])
        if earlier := [each for each in unseen if each.transaction.lsn < start]:
            without = partition_truncations.left_without_rows(self._database, self._tunnel, earlier, start)
            # It is not recorded: another reader can begin before their rows.
            self._unwritten.update(dict.fromkeys(without, start))
            unseen = [each for each in unseen if each not in without]
        if unseen:
            roots = sorted({each.root for each in unseen})
            self._seen.lost = _lost(self._recorded(roots, unseen))
            self.check()

    def _wait_for(self, xids: Sequence[int]) -> None:
        """Wait until transactions of the log (32 bits) are visible, with what they have made.

        Raises:
            StoreBusyError: one is not visible for long.
        """
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while True:
            ((snapshot,),) = self._database.query("SELECT pg_current_snapshot()::text")
            if Snapshot.parse(snapshot).sees(np.array(xids, np.int64)).all():
                return
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    "the log has a transaction that the server does not show",
                    received=f"one of {', '.join(map(str, xids))}, for {_VISIBLE_SECONDS:g} s",
                    remedy="try again; if it repeats, look at the standbys of synchronous_standby_names",
                )
            time.sleep(_PAUSE)

    def accept(self) -> bool:
        """Accept what was lost; return whether anything was."""
        accepted = self._database.query(
            "UPDATE headrace.definition SET lost = '[]' WHERE tunnel = %s AND lost <> '[]' RETURNING 1", (self._tunnel,)
        )
        self._seen.lost = []
        return bool(accepted)

    def warnings(self) -> list[str]:
        """Return the problems for which `check` fails, and what readers may miss."""
        seen = self._seen
        return [*(refusal.text for refusal in seen.inspected.refusals), *seen.lost, *seen.inspected.warnings]


def _by_relation(rows: Sequence[tuple[int, str, str, str]]) -> dict[int, list[str]]:
    """Return the versions of each table."""
    versions: dict[int, list[str]] = {}
    for relation, _, content, _ in rows:
        versions.setdefault(relation, []).append(content)
    return versions


def _lost(rows: Sequence[tuple[int, str, str, str]]) -> list[str]:
    return [each for *_, lost in rows for each in json.loads(lost)]


def _left_unseen(
    versions: Sequence[Definition], now: Definition, written: Sequence[WrittenLeaf]
) -> dict[str, Relation]:
    """Return the written partitions that are none now, and of which no version knows, by their oids."""
    return {
        str(each.leaf.oid): each.leaf
        for each in written
        if not any(version.accounts_for(each.leaf.oid, each.transaction.lsn) for version in (*versions[-1:], now))
    }


def _losses(
    statements: PostgresStatements,
    relation: int,
    versions: Sequence[Definition],
    now: Definition,
    left: Mapping[str, Relation],
    *,
    delivered: bool,
    whole: Mapping[_Partition, bool],
) -> list[str]:
    unknown = list[_Partition]()
    retyped = definitions.changes_types(versions[-1], now)

    def attached(oid: str, leaf: Leaf) -> bool:
        return catalog.attached_with_rows(statements, relation, oid, leaf)

    def truncated(oid: str, leaf: Leaf) -> bool:
        partition: _Partition = _NewLeaf(relation, oid, versions[-1].xid)
        if oid in versions[-1].leaves:
            if not catalog.may_be_truncated(statements, oid, leaf, versions[-1].xid):
                return False
            if not retyped:
                partition = _NewFile(relation, catalog.file_xid(statements, oid))
        if partition not in whole:
            unknown.append(partition)
        return not whole.get(partition)

    found = definitions.losses(versions, now, delivered=delivered, attached=attached, truncated=truncated)
    for oid, leaf in left.items():
        partition = _LeftLeaf(relation, oid)
        if partition not in whole:
            unknown.append(partition)
        elif not whole[partition]:
            found.append(definitions.departure(catalog.quoted(statements, leaf.schema, leaf.name)))
    if unknown:
        raise _UnknownError(unknown)
    return found
