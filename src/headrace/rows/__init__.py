"""Turning what callers hand in (Arrow, pandas, dicts) into rows of exactly a schema's types.

A value is taken only if the column can hold it as it is. Wider integers, other units of time, large or
dictionary-encoded Arrow types and the like are converted when every value fits; a double is rounded to
a float column, as everywhere. Nothing else is rounded, cut or guessed: such a value is a `SchemaError` that
names the column, the place inside of it (``tags[].n``) and the row, counted from 0. The same holds at every level of
arrays, maps and structs; fields of structs are matched by name, and a field left out is null.

Timestamps without a time zone count as UTC; a date in a timestamp column is its midnight in UTC. In pandas, NaN
means "no value" in columns of every type (pandas has no other way to say it), so it becomes null; in Arrow, in dicts
and inside of composite values NaN is a number and stays NaN.
"""

from headrace.rows.from_user import check_not_null, to_arrow, to_column

__all__ = ["check_not_null", "to_arrow", "to_column"]
