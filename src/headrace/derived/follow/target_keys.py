"""The key of a new target: output columns that are unique in the result of a query."""

from __future__ import annotations

from headrace.derived.follow.plan import FollowedPlan
from headrace.derived.follow.split import Grouping
from headrace.derived.gathering.unique import without_determined
from headrace.errors import SqlError


def key_of(plan: FollowedPlan, remedy: str) -> tuple[str, ...]:
    """Return the columns of GROUP BY or DISTINCT, or the keys of the tables whose rows the result has.

    Columns that others determine are left out, such as a name beside the key of its table.

    Args:
        remedy: how to name a key, for the error.

    Raises:
        SqlError: the query shows none.
    """
    if plan.query.groups is not None:
        return _of_groups(plan, plan.query.groups, remedy)
    key = _of_scans(plan) if plan.gathering is None else tuple(plan.names[place] for place in plan.unique)
    if not key:
        keys = "; ".join(f"{', '.join(scan.key)} of {scan.name}" for scan in plan.scans)
        raise SqlError(
            "the query does not show which columns of its result are unique",
            received=list(plan.names),
            valid="GROUP BY with its columns selected, DISTINCT, or the key columns of the joined tables, selected as "
            f"they are: {keys}",
            remedy=remedy,
        )
    return key


def _of_groups(plan: FollowedPlan, groups: Grouping, remedy: str) -> tuple[str, ...]:
    items = list(zip(plan.names, groups.items, strict=True))
    if not groups.names:
        constant = next((name for name, item in items if item.always), None)
        if constant is None:
            raise SqlError(
                "the query has one row, and no column for its key",
                received=list(plan.names),
                remedy="add a constant to the select list: 'all' AS key",
            )
        return (constant,)
    copies = {
        item.group: name
        for name, item in reversed(items)
        if item.group is not None and item.always and not item.as_text
    }
    places = [place for place, group in enumerate(groups.names) if group in copies]
    known = plan.with_determined(copies)
    missing = [place for place, group in enumerate(groups.names, 1) if group not in known]
    if missing:
        raise SqlError(
            "the select list lacks an expression of GROUP BY, so that two rows of the result can be alike",
            received=f"expression {', '.join(map(str, missing))} of GROUP BY",
            remedy=f"select it; or {remedy}",
        )
    model = None if plan.gathering is None else plan.gathering.model
    key = without_determined(model, places)
    return tuple(dict.fromkeys(copies[groups.names[place]] for place in key))


def _of_scans(plan: FollowedPlan) -> tuple[str, ...]:
    """Return the copies of the key of the scan, in the same columns in each branch of UNION ALL."""
    places: set[tuple[int, ...]] = set()
    for select, origins in zip(plan.query.selects, plan.origins, strict=True):
        scan = next(scan for scan in plan.scans if scan.name == select.scan)
        wanted = [(scan.name, column) for column in scan.key]
        if not all(each in origins for each in wanted):
            return ()
        places.add(tuple(origins.index(each) for each in wanted))
    if len(places) != 1:
        return ()
    branch = () if plan.query.branch_column is None else (plan.query.branch_column,)
    return tuple(plan.names[place] for place in (*branch, *places.pop()))
