"""Locks and snapshots of files and static tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start, value_of
from tests.ytsaurus.unit.ytsaurus_contents import Content, call_in, lock, new_content


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(params=["table", "file"])
def content(cluster: Cluster, request: pytest.FixtureRequest) -> Content:
    return new_content(cluster, request.param)


LOCKS: dict[str, Callable[[Content, str | None], None]] = {
    "append": lambda content, tx: content.append(9, tx=tx),
    "replace": lambda content, tx: content.write(9, tx=tx),
    "remove": lambda content, tx: call_in(content, "remove", tx, path=content.path),
    "move": lambda content, tx: call_in(
        content, "move", tx, source_path=content.path, destination_path=content.other("m").path
    ),
    "attribute": lambda content, tx: call_in(content, "set", tx, 1, path=f"{content.path}/@x"),
    "shared": lambda content, tx: lock(content, "shared", tx),
    "exclusive": lambda content, tx: lock(content, "exclusive", tx),
    "snapshot": lambda content, tx: lock(content, "snapshot", tx),
    "read": lambda content, tx: _read(content, tx),
}


def _read(content: Content, tx: str | None) -> None:
    assert content.read(tx) == [1, 2]


@pytest.mark.parametrize(
    ("holder", "allowed"),
    [
        ("append", {"append", "attribute", "shared", "snapshot", "read"}),
        ("shared", {"append", "attribute", "shared", "snapshot", "read"}),
        ("attribute", {"append", "shared", "snapshot", "read"}),
        ("replace", {"snapshot", "read"}),
        ("exclusive", {"snapshot", "read"}),
        ("remove", {"snapshot", "read"}),
        ("snapshot", set(LOCKS)),
        ("read", set(LOCKS)),
    ],
)
@pytest.mark.parametrize("inside", [True, False], ids=["a transaction", "none"])
def test_each_operation_allows_compatible_ones_of_others(
    cluster: Cluster, content: Content, holder: str, allowed: set[str], inside: bool
) -> None:
    tx = start(cluster)
    LOCKS[holder](content, tx)
    for name, change in LOCKS.items():
        if inside:
            other = start(cluster)
            assert conflicts(change, content, other) == (name not in allowed), name
            abort(cluster, other)
        elif name not in allowed and name not in ("shared", "exclusive"):
            # Allowed operations are not executed, because they would affect the next steps.
            assert conflicts(change, content, None), name
    abort(cluster, tx)
    assert content.read() == [1, 2]


def conflicts(change: Callable[[Content, str | None], None], content: Content, tx: str | None) -> bool:
    try:
        change(content, tx)
    except YtError as error:
        if error.code != Code.CYPRESS_LOCK_CONFLICT:
            raise
        return True
    return False


def test_a_failed_write_takes_no_lock(cluster: Cluster, content: Content) -> None:
    first, second = start(cluster), start(cluster)
    content.append(3, tx=first)
    node = value_of(cluster, f"{content.path}/@id")
    for name in ("locked_node_ids", "branched_node_ids"):
        assert value_of(cluster, f"#{first}/@{name}") == [node]
    with pytest.raises(YtError):
        content.write(4, tx=second)
    assert [lock["transaction_id"] for lock in value_of(cluster, f"{content.path}/@locks")] == [first]
    commit(cluster, first)
    content.write(4, tx=second)
    commit(cluster, second)
    assert content.read() == [4]


def test_a_snapshot_is_unchanged_by_later_operations(cluster: Cluster, content: Content) -> None:
    tx = start(cluster)
    node = value_of(cluster, f"{content.path}/@id")
    lock(content, "snapshot", tx)
    by_id = Content(cluster, content.kind, f"#{node}")
    content.append(3)
    content.write(4)
    assert (content.read(tx), content.read()) == ([1, 2], [4])
    for inner in (tx, start(cluster, tx)):
        with pytest.raises(YtError) as conflict:
            content.append(5, tx=inner)
        assert conflict.value.code == Code.SAME_TRANSACTION_LOCK_CONFLICT
    call(cluster, "remove", path=content.path)
    cluster.contents.sweep(1 << 60)
    assert by_id.read(tx) == [1, 2]
    abort(cluster, tx)
    with pytest.raises(YtError):
        by_id.read()


def test_a_snapshot_conflicts_with_changes_of_a_nested_transaction(cluster: Cluster, content: Content) -> None:
    outer = start(cluster)
    inner = start(cluster, start(cluster, outer))
    content.append(3, tx=inner)
    with pytest.raises(YtError) as conflict:
        call(cluster, "lock", path=content.path, mode="snapshot", transaction_id=outer, waitable=False)
    assert conflict.value.code == Code.DESCENDANT_TRANSACTION_LOCK_CONFLICT
    lock(content, "snapshot", start(cluster, inner))
    abort(cluster, outer)


def test_a_pending_lock_moves_to_the_parent_or_ends_with_its_node(cluster: Cluster, content: Content) -> None:
    holder, outer, other = start(cluster), start(cluster), start(cluster)
    inner = start(cluster, outer)
    content.write(3, tx=holder)
    waiting, lost = (
        call(cluster, "lock", path=content.path, waitable=True, transaction_id=tx).value for tx in (inner, other)
    )
    assert waiting["revision"] == 0
    commit(cluster, inner)
    assert value_of(cluster, f"#{waiting['lock_id']}/@transaction_id") == outer
    commit(cluster, holder)
    assert value_of(cluster, f"#{waiting['lock_id']}/@state") == "acquired"
    assert value_of(cluster, f"#{lost['lock_id']}/@state") == "pending"
    call(cluster, "remove", path=content.path, transaction_id=outer)
    commit(cluster, outer)
    assert not call(cluster, "exists", path=f"#{lost['lock_id']}").value["value"]
    call(cluster, "create", type=content.kind, path=content.path)
    abort(cluster, other)


def test_a_pending_lock_sees_the_content_when_it_is_acquired(cluster: Cluster, content: Content) -> None:
    first, second = start(cluster), start(cluster)
    content.write(3, tx=first)
    call(cluster, "lock", path=content.path, mode="shared", waitable=True, transaction_id=second)
    commit(cluster, first)
    content.append(4)
    assert content.read(second) == [3]
    content.append(5, tx=second)
    commit(cluster, second)
    assert content.read() == [3, 4, 5]


def test_an_unlocked_node_shows_the_current_content(cluster: Cluster, content: Content) -> None:
    tx = start(cluster)
    lock(content, "shared", tx)
    content.append(3)
    assert content.read(tx) == [1, 2]
    call(cluster, "unlock", path=content.path, transaction_id=tx)
    assert content.read(tx) == [1, 2, 3]
    content.append(4, tx=tx)
    call(cluster, "unlock", path=content.path, transaction_id=tx)
    assert content.read(tx) == [1, 2, 3, 4]
    lock(content, "exclusive", tx)
    with pytest.raises(YtError, match="modified"):
        call(cluster, "unlock", path=content.path, transaction_id=tx)
    abort(cluster, tx)
