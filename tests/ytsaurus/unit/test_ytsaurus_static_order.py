"""The sort order of static tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start, value_of
from tests.ytsaurus.unit.ytsaurus_contents import new_path, numbers, write


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.mark.parametrize(
    ("unique", "writes", "code"),
    [
        (False, [[1, 1, 2], [2, 3]], 0),
        (False, [[1, 3], [2]], Code.SORT_ORDER_VIOLATION),
        (False, [[2, 1]], Code.SORT_ORDER_VIOLATION),
        (False, [[1], [], [1]], 0),
        (True, [[1, 2], [3]], 0),
        (True, [[1, 1]], Code.UNIQUE_KEY_VIOLATION),
        (True, [[1, 2], [2]], Code.UNIQUE_KEY_VIOLATION),
        (True, [[None, -5], [7]], 0),
        (False, [[1, None]], Code.SORT_ORDER_VIOLATION),
    ],
)
def test_rows_of_a_sorted_table_must_be_in_order(
    cluster: Cluster, unique: bool, writes: list[list[Any]], code: int
) -> None:
    path = new_path()
    schema = f"<unique_keys={'%true' if unique else '%false'}>[{{name=a;type=int64;sort_order=ascending}}]"
    write(cluster, f"<schema={schema}>{path}")
    tx = start(cluster)
    done: list[Any] = []
    failed = 0
    for rows in writes:
        try:
            write(cluster, f"<append=%true;sorted_by=[a]>{path}", *rows, tx=tx)
            done += rows
        except YtError as error:
            failed = error.code
    assert failed == code
    assert numbers(cluster, path, tx) == done
    commit(cluster, tx)
    assert numbers(cluster, path) == done


@pytest.mark.parametrize(
    ("kind", "ascending"),
    [
        ("any", [None, -70, 3, 2.5, True, "x"]),
        ("uint64", [None, 0, 5, 1 << 63]),
        ("double", [-1.5, 0.0, float("inf")]),
        ("boolean", [False, True]),
        ("string", [b"", b"a", b"a\x00", b"\xc3\xbf", b"\xff"]),
        ("utf8", ["", "a", "\u00ff", "\U0001f600"]),
        ("date", [0, 1, 40_000]),
    ],
)
def test_every_key_type_has_an_order(cluster: Cluster, kind: str, ascending: list[Any]) -> None:
    path = new_path()
    write(cluster, f"<schema=<unique_keys=%true>[{{name=a;type={kind};sort_order=ascending}}]>{path}")
    write(cluster, path, *ascending)
    for first, second in itertools.pairwise(ascending):
        for rows, code in (((second, first), Code.SORT_ORDER_VIOLATION), ((first, first), Code.UNIQUE_KEY_VIOLATION)):
            with pytest.raises(YtError) as wrong:
                write(cluster, path, *rows)
            assert wrong.value.code == code
    assert value_of(cluster, f"{path}/@row_count") == len(ascending)


def test_appends_to_sorted_tables_exclude_each_other(cluster: Cluster) -> None:
    for schema in ("[{name=a;type=int64;sort_order=ascending}]", None):
        path = new_path()
        if schema:
            write(cluster, f"<schema={schema}>{path}", 1)
        else:
            write(cluster, f"<sorted_by=[a]>{path}", 1)
        first, second = start(cluster), start(cluster)
        write(cluster, f"<append=%true;sorted_by=[a]>{path}", 5, tx=first)
        with pytest.raises(YtError) as conflict:
            write(cluster, f"<append=%true;sorted_by=[a]>{path}", 6, tx=second)
        assert conflict.value.code == Code.CYPRESS_LOCK_CONFLICT
        commit(cluster, first)
        with pytest.raises(YtError) as order:
            write(cluster, f"<append=%true;sorted_by=[a]>{path}", 4, tx=second)
        assert order.value.code == Code.SORT_ORDER_VIOLATION
        write(cluster, f"<append=%true;sorted_by=[a]>{path}", 6, tx=second)
        commit(cluster, second)
        assert numbers(cluster, path) == [1, 5, 6]


def test_the_order_is_checked_against_committed_rows(cluster: Cluster) -> None:
    path = new_path()
    write(cluster, f"<schema=[{{name=a;type=int64;sort_order=ascending}}]>{path}", 1)
    tx = start(cluster)
    call(cluster, "set", 1, path=f"{path}/@mark", transaction_id=tx)
    with pytest.raises(YtError):
        write(cluster, f"<append=%true>{path}", 5)
    call(cluster, "lock", path=path, mode="shared", transaction_id=tx)
    write(cluster, f"<append=%true>{path}", 5, tx=tx)
    commit(cluster, tx)
    assert numbers(cluster, path) == [1, 5]


def test_rows_without_a_schema_keep_the_order_of_the_last_write(cluster: Cluster) -> None:
    path = new_path()

    def sorted_by(tx: str | None = None) -> Any:
        names = value_of(cluster, f"{path}/@", tx).get("sorted_by", [])
        assert value_of(cluster, f"{path}/@sorted", tx) == bool(names)
        assert value_of(cluster, f"{path}/@key_columns", tx) == names
        assert [column["name"] for column in value_of(cluster, f"{path}/@schema", tx)] == names
        assert value_of(cluster, f"{path}/@schema_mode", tx) == "weak"
        return names

    mixed = [None, -1, 5, 2.5, False, True, "a", "b"]
    write(cluster, f"<sorted_by=[a;b]>{path}", *mixed)
    assert sorted_by() == ["a", "b"]
    tx = start(cluster)
    write(cluster, f"<append=%true;sorted_by=[{{name=a;sort_order=ascending}}]>{path}", "b", "c", tx=tx)
    assert (sorted_by(tx), sorted_by()) == (["a"], ["a", "b"])
    with pytest.raises(YtError, match="Key columns mismatch"):
        write(cluster, f"<append=%true;sorted_by=[a;b]>{path}", "d", tx=tx)
    with pytest.raises(YtError) as order:
        write(cluster, f"<append=%true;sorted_by=[a]>{path}", "b", tx=tx)
    assert order.value.code == Code.SORT_ORDER_VIOLATION
    write(cluster, f"<append=%true>{path}", 1, tx=tx)
    assert sorted_by(tx) == []
    with pytest.raises(YtError, match="Key columns mismatch"):
        write(cluster, f"<append=%true;sorted_by=[a]>{path}", 7, tx=tx)
    commit(cluster, tx)
    assert sorted_by() == []
    assert numbers(cluster, path) == [*mixed, "b", "c", 1]
    with pytest.raises(YtError) as unfit:
        write(cluster, f"<sorted_by=[a]>{path}", {"a": [1]})
    assert unfit.value.code == Code.INCOMPARABLE_TYPE


@pytest.mark.parametrize(
    "attributes",
    [
        "append=%true;schema=[{name=a;type=int64}]",
        "sorted_by=[a];schema=[{name=a;type=int64}]",
        "sorted_by=[b]",
        "append=%true;sorted_by=[a;b]",
        "append=yes",
        "sorted_by=a",
        "sorted_by=[{name=a;sort_order=descending}]",
        "sorted_by=[1]",
    ],
)
def test_incompatible_path_attributes_are_refused(cluster: Cluster, attributes: str) -> None:
    path = new_path()
    write(cluster, f"<schema=[{{name=a;type=int64;sort_order=ascending}}]>{path}", 1)
    with pytest.raises(YtError):
        write(cluster, f"<{attributes}>{path}", 2)
    assert numbers(cluster, path) == [1]


def test_concatenated_tables_must_fit_the_schema_and_the_order(cluster: Cluster) -> None:
    paths = [new_path() for _ in range(3)]
    schema = "<unique_keys={}>[{{name=a;type=int64;sort_order=ascending}}]"
    for path, unique, rows in zip(paths, ("%true", "%true", "%false"), ([1, 2], [3], [3, 3]), strict=True):
        write(cluster, f"<schema={schema.format(unique)}>{path}", *rows)
    first, second, third = paths
    weak = new_path()
    write(cluster, weak, "text")

    def joined(destination: str, *sources: str) -> list[Any]:
        tx = start(cluster)
        call(cluster, "concatenate", source_paths=list(sources), destination_path=destination, transaction_id=tx)
        found = numbers(cluster, destination.rpartition(">")[2], tx)
        abort(cluster, tx)
        return found

    for destination, sources in ((first, [second, first]), (f"<append=%true>{second}", [first])):
        with pytest.raises(YtError) as order:
            joined(destination, *sources)
        assert order.value.code == Code.SORT_ORDER_VIOLATION
    for destination, sources in ((first, [third]), (first, [weak]), (weak, ["//tmp"])):
        with pytest.raises(YtError):
            joined(destination, *sources)
    assert joined(f"<append=%true>{first}", second) == joined(first, first, second) == [1, 2, 3]
    assert joined(weak, second, first) == [3, 1, 2]
    assert joined(f"<append=%true>{weak}", first) == ["text", 1, 2]
    tx = start(cluster)
    call(cluster, "concatenate", source_paths=[second, first], destination_path=weak, transaction_id=tx)
    assert [column["name"] for column in value_of(cluster, f"{weak}/@schema", tx)] == ["a"]
    assert not value_of(cluster, f"{weak}/@sorted", tx)
    assert value_of(cluster, f"{weak}/@schema_mode") == "weak"
    abort(cluster, tx)
