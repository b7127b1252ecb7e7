"""Net changes of a batch: the same table, without the rows that it adds and removes again."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.derived.last_rows import net_changes
from headrace.derived.own_names import SIGN

keys = st.tuples(st.integers(0, 3), st.sampled_from(["", "x"]))
tables = st.dictionaries(keys, st.integers(0, 9))


def _signed(before: dict[tuple[int, str], int], changes: list[tuple[tuple[int, str], int | None]]) -> pa.Table:
    """Return the signed rows of puts, and of deletes where the value is None."""
    now = dict(before)
    rows: list[tuple[tuple[int, str], int, int]] = []
    for key, value in changes:
        if key in now:
            rows.append((key, now.pop(key), -1))
        if value is not None:
            now[key] = value
            rows.append((key, value, 1))
    columns = {
        ".id": pa.array([key[0] for key, _, _ in rows], pa.int64()),
        "a.b": pa.array([key[1] for key, _, _ in rows], pa.string()),
        "v": pa.array([value for _, value, _ in rows], pa.int64()),
        SIGN: pa.array([sign for _, _, sign in rows], pa.int8()),
    }
    return pa.table(columns)


@given(
    before=tables, changes=st.lists(st.tuples(keys, st.none() | st.integers(0, 9)), max_size=20), size=st.integers(1, 5)
)
def test_net_changes_lead_from_the_old_rows_to_the_new_ones(
    before: dict[tuple[int, str], int], changes: list[tuple[tuple[int, str], int | None]], size: int
) -> None:
    after = dict(before)
    for key, value in changes:
        after.pop(key, None)
        if value is not None:
            after[key] = value
    signed = _signed(before, changes)
    net = [row for part in net_changes(signed.to_batches(max_chunksize=size), [0, 1]) for row in part.to_pylist()]
    touched = {key for key, _ in changes}

    def signed_with(sign: int) -> list[tuple[tuple[int, str], int]]:
        return sorted(((row[".id"], row["a.b"]), row["v"]) for row in net if row[SIGN] == sign)

    assert signed_with(-1) == sorted((key, value) for key, value in before.items() if key in touched)
    assert signed_with(1) == sorted((key, value) for key, value in after.items() if key in touched)
