"""Conversion of users' rows (Arrow, pandas, dicts) into the exact types of a schema, and of stored values for readers.

A value is accepted only if the column can represent it. Wider integers, other units of time, and large or
dictionary-encoded Arrow types are converted if every value fits. A double is rounded in a float column. No other value
is rounded, truncated or guessed: it is a `SchemaError` with the column, the path inside the value (``tags[].n``) and
the row, counted from 0. The same rules apply at all levels of arrays, maps and structs. Fields of structs are matched
by name; a missing field is null.

Timestamps without a time zone are in UTC. A date in a timestamp column is midnight in UTC. In pandas, NaN is the
missing value of columns of all types, so it becomes null. In Arrow, in dicts and inside composite values NaN is a
number.
"""

from headrace.rows.from_user import check_not_null, check_sets, to_arrow, to_column

__all__ = ["check_not_null", "check_sets", "to_arrow", "to_column"]
