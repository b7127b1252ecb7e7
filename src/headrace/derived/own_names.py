"""The names of headrace's own columns and views in followed queries and mirrors.

The rows SQL, the aggregates and the result SQL of a query have own columns beside those of the user. One prefix keeps
the two apart, also where Spark ignores case.
"""

from __future__ import annotations

from headrace.model.own_names import PREFIX

SIGN = f"{PREFIX}sign"
"""The column of signed rows with 1 for a row that is now in the table, and -1 for one that no longer is."""
ORDER = f"{PREFIX}order"
"""The column of signed rows with the place of the change that the row comes from."""
ALIVE = f"{PREFIX}alive"
"""The column of groups: whether the group has rows."""
KEEP = f"{PREFIX}keep"
"""The column of results: whether the group has a row in the target."""
STATE = f"{PREFIX}state"
"""The column of groups with the receipts of a task's state rows."""
STATE_DDL = "array<struct<target:bigint,id:bigint,rows:bigint>>"
"""The type of column `STATE`."""
GROUPS_VIEW = f"{PREFIX}groups"
"""The view that the result SQL reads."""
BATCH_VIEW = f"{PREFIX}batch"
"""What the names of the views of a batch begin with."""


def group_column(number: int) -> str:
    """Return the column of rows and groups with the value of a group expression."""
    return f"{PREFIX}g{number}"


def argument_column(number: int) -> str:
    """Return the column of rows with an argument of aggregates."""
    return f"{PREFIX}a{number}"


def value_column(number: int) -> str:
    """Return the column of groups with the value of an aggregate."""
    return f"{PREFIX}s{number}"


def output_column(number: int) -> str:
    """Return the column of results with an output column."""
    return f"{PREFIX}o{number}"


def inner_table(number: int) -> str:
    """Return the table with the groups of an inner query, in the text of the query around it."""
    return f"{PREFIX}inner{number}"


def inner_groups(number: int) -> str:
    """Return the name of the groups of an inner query for people."""
    return f"inner groups {number}"
