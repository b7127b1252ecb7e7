"""Contents of files and static tables in transactions: visibility, commits, aborts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start
from tests.ytsaurus.unit.ytsaurus_contents import Content, new_content


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(params=["table", "file"])
def content(cluster: Cluster, request: pytest.FixtureRequest) -> Content:
    return new_content(cluster, request.param)


@pytest.mark.parametrize("append", [False, True], ids=["replace", "append"])
def test_writes_are_visible_only_in_the_transaction_until_the_commit(
    cluster: Cluster, content: Content, append: bool
) -> None:
    outer, stranger = start(cluster), start(cluster)
    middle = start(cluster, outer)
    inner = start(cluster, middle)
    content.write(3, tx=middle, append=append)
    after = [1, 2, 3] if append else [3]
    for tx, seen in ((middle, after), (inner, after), (outer, [1, 2]), (stranger, [1, 2]), (None, [1, 2])):
        assert content.read(tx) == seen
    commit(cluster, middle)
    for tx, seen in ((outer, after), (stranger, [1, 2]), (None, [1, 2])):
        assert content.read(tx) == seen
    commit(cluster, outer)
    assert content.read() == content.read(stranger) == after
    abort(cluster, stranger)


@pytest.mark.parametrize("append", [False, True], ids=["replace", "append"])
def test_an_abort_discards_writes(cluster: Cluster, content: Content, append: bool) -> None:
    outer = start(cluster)
    inner = start(cluster, outer)
    content.write(3, tx=inner, append=append)
    commit(cluster, inner)
    content.append(4, tx=outer)
    abort(cluster, outer)
    assert content.read() == [1, 2]
    content.append(5)
    assert content.read() == [1, 2, 5]


def test_an_expired_transaction_is_aborted(cluster: Cluster, content: Content) -> None:
    tx = start(cluster, timeout=1000)
    content.write(3, tx=tx)
    deadline = time.monotonic() + 30
    while call(cluster, "exists", path=f"#{tx}").value["value"]:
        assert content.read() == [1, 2]
        assert time.monotonic() < deadline
    content.write(4)
    assert content.read() == [4]
    with pytest.raises(YtError) as missing:
        commit(cluster, tx)
    assert missing.value.code == Code.NO_SUCH_TRANSACTION


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        (["append", "append"], [1, 2, 10, 11]),
        (["append", "replace"], [11]),
        (["replace", "append"], [10, 11]),
        (["replace", "replace", "append"], [11, 12]),
    ],
)
@pytest.mark.parametrize("nested", [False, True], ids=["one", "nested"])
def test_several_writes_of_a_transaction_are_merged(
    cluster: Cluster, content: Content, steps: list[str], result: list[int], nested: bool
) -> None:
    tx = start(cluster)
    for number, step in enumerate(steps, start=10):
        inner = start(cluster, tx) if nested else tx
        content.write(number, tx=inner, append=step == "append")
        if nested:
            commit(cluster, inner)
    assert content.read(tx) == result
    commit(cluster, tx)
    assert content.read() == result
    content.append(99)
    assert content.read() == [*result, 99]


def test_concurrent_appends_are_all_committed(cluster: Cluster, content: Content) -> None:
    first, second, third = (start(cluster) for _ in range(3))
    content.append(10, tx=first)
    content.append(20, tx=second)
    content.append(30, tx=third)
    content.append(11, tx=first)
    content.append(40)
    assert content.read(first) == [1, 2, 10, 11]
    commit(cluster, second)
    assert content.read(first) == [1, 2, 10, 11]
    assert content.read() == [1, 2, 40, 20]
    abort(cluster, third)
    commit(cluster, first)
    assert content.read() == [1, 2, 40, 20, 10, 11]


def test_nested_transactions_append_concurrently(cluster: Cluster, content: Content) -> None:
    outer = start(cluster)
    first, second = start(cluster, outer), start(cluster, outer)
    content.append(10, tx=first)
    content.append(20, tx=second)
    content.append(30, tx=outer)
    commit(cluster, second)
    assert content.read(outer) == [1, 2, 30, 20]
    commit(cluster, first)
    commit(cluster, outer)
    assert content.read() == [1, 2, 30, 20, 10]
