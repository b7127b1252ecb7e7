"""All checks of an embedded store, in one transaction, and their repairs in another one."""

from __future__ import annotations

from collections.abc import Mapping

import apsw

from headrace.errors import HeadraceError
from headrace.model.findings import Finding, Status
from headrace.stores.embedded.checks import catalog, files, logs, pages, publications, tunnels
from headrace.stores.embedded.checks.problems import Check, Problem
from headrace.stores.embedded.connection import Database
from headrace.support.sqlite.forks import no_fork

CHECKS: Mapping[str, Check] = {
    "SQLite's integrity": pages.sqlite,
    "write-ahead log": pages.write_ahead_log,
    "catalog": catalog.catalog,
    "rows and partitions of tables": catalog.rows,
    "partitions of queues": catalog.partitions_of_queues,
    "change logs and queues": logs.logs,
    "chunks": logs.chunks_without_partition,
    "staged rows": publications.staged_rows,
    "binaries": logs.blobs,
    "tunnels": tunnels.tunnels,
    "base data": tunnels.base_data,
    "plans and ends of batches": tunnels.batches,
    "markers": publications.markers,
    "consumers and producers": publications.consumers,
    "files": files.files,
}
"""The checks by name, in the order in which they run and in which their problems are repaired."""
_SHOWN = 5
_NO_REPAIR = (
    "no safe repair is known: stop all processes that use the store, copy its directory, and restore a backup "
    "(`headrace restore`)"
)


def check_store(database: Database, *, repair: bool = False) -> list[Finding]:
    """Check all invariants of a store; return a finding for each check.

    Without ``repair`` the checks see one state of the store, and writers go on. With it, each check and its repairs
    are one write transaction, for which writers wait.
    """
    if not repair:
        with database.snapshot() as connection:
            return [_finding(name, _problems(check, connection)) for name, check in CHECKS.items()]
    return [_repaired(database, name, check) for name, check in CHECKS.items()]


def check_integrity(database: Database) -> Finding:
    """Let SQLite check its pages and indexes."""
    name = "SQLite's integrity"
    with database.snapshot() as connection:
        return _finding(name, _problems(CHECKS[name], connection))


def _problems(check: Check, connection: apsw.Connection) -> list[Problem]:
    try:
        with no_fork:
            return list(check(connection))
    except (apsw.Error, HeadraceError, LookupError, ValueError, TypeError) as error:
        # Another check reports the damage that this one cannot pass.
        return [Problem(f"the check cannot be completed: {type(error).__name__}: {error}")]


def _repaired(database: Database, name: str, check: Check) -> Finding:
    with database.write() as connection:
        problems = _problems(check, connection)
        repairs = list(dict.fromkeys(repair for problem in problems for repair in problem.repairs))
        for repair in repairs:
            connection.execute(repair.sql, repair.bindings)
        left = _problems(check, connection) if repairs else problems
    if not repairs:
        return _finding(name, problems)
    done = "repaired: " + _listed([repair.does for repair in repairs])
    if not left:
        return Finding(name, Status.OK, done)
    return Finding(name, Status.FAIL, f"{done}; left: {_listed([problem.found for problem in left])}", _NO_REPAIR)


def _finding(name: str, problems: list[Problem]) -> Finding:
    if not problems:
        return Finding(name, Status.OK, "no problem found")
    found = _listed([problem.found for problem in problems])
    repairs = list(dict.fromkeys(repair.does for problem in problems for repair in problem.repairs))
    all_repaired = all(problem.repairs for problem in problems)
    remedy = f"`headrace store check --repair` would {_listed(repairs)}" if repairs else ""
    if not all_repaired:
        remedy = f"{remedy}; for the rest {_NO_REPAIR}" if remedy else _NO_REPAIR
    # Nothing is lost where all problems can be repaired.
    return Finding(name, Status.WARN if all_repaired else Status.FAIL, found, remedy)


def _listed(texts: list[str]) -> str:
    shown = "; ".join(texts[:_SHOWN])
    return f"{shown}; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else shown
