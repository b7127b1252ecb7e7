"""The constructs for which a batch reads tables as a whole, with their names and the ways out."""

from __future__ import annotations

from typing import NamedTuple


class Construct(NamedTuple):
    """A construct in words.

    Attributes:
        name: its name, for a person who reads the query.
        remedy: another way to write the query.
    """

    name: str
    remedy: str


_LINK = "compare a plain column of the subquery with one of the query around it by ="
_TOTALS = "keep the totals in a table of their own, and compare with them when you query"

JOIN = Construct(
    "a join without an equality", "join by = of plain columns of one type, or read one of the tables as a static one"
)
OUTER_JOIN = Construct("an outer, semi or anti join without an equality", JOIN.remedy)
BESIDE_FULL_JOIN = Construct(
    "a table joined to a FULL JOIN", "keep the FULL JOIN in a table of its own, and follow that"
)
SUBQUERY = Construct("a subquery in FROM that no equality joins", JOIN.remedy)
EXISTS = Construct("EXISTS without an equality", _LINK)
MEMBERSHIP = Construct(
    "IN (SELECT …) outside of WHERE, beside OR, or not of one plain column", "write EXISTS, with an = for each column"
)
NOT_IN = Construct("NOT IN (SELECT …)", "write NOT EXISTS: a null in the list of NOT IN decides about all rows")
SCALAR = Construct(
    "a scalar subquery that no equality links",
    f"{_LINK}, or in WHERE a plain column with one aggregate as it is; or {_TOTALS}",
)
GROUPS = Construct("GROUP BY of computed columns", "group by a plain column of a followed table")
SETS = Construct("ROLLUP, CUBE or GROUPING SETS", "write a query for each grouping")
TOTAL = Construct("aggregates of all rows", f"group by a plain column; or {_TOTALS}")
WINDOW = Construct("a window over all rows", "write PARTITION BY with a plain column of a followed table")
DISTINCT = Construct("DISTINCT of computed columns", "select a plain column of a followed table as well")
LIMIT = Construct("ORDER BY … LIMIT", "keep the rows without LIMIT, and read the first ones from the target")
SET_OPERATION = Construct(
    "a set operation of computed columns", "select plain columns of one type, in the same order in each branch"
)
UNKNOWN_AGGREGATE = Construct("an aggregate that is not one of Spark's", "write it with Spark's own aggregates")
READ_WHOLE = (
    JOIN, OUTER_JOIN, BESIDE_FULL_JOIN, SUBQUERY, EXISTS, MEMBERSHIP, NOT_IN, SCALAR, TOTAL, GROUPS, SETS, WINDOW,
    DISTINCT, LIMIT, SET_OPERATION, UNKNOWN_AGGREGATE,
)  # fmt: skip
"""All constructs but those of `unclear`."""


def unclear(part: str) -> Construct:
    """Return the construct of a query with a part whose structure is not read."""
    return Construct(part, "write the query without it, with the columns by their names")
