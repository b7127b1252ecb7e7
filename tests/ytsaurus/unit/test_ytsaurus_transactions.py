"""Master transactions, compared with a model: isolation, nesting, atomic commits."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress import basic_types
from headrace_ytsaurus.endpoint.cypress.node import Node
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of

_homes = itertools.count()
Tree = dict[str, Any]
Change = Callable[[Tree], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


# -- a model: every transaction is a list of changes, applied to what its parent sees ------------------------------


class Impossible(Exception):
    """The change cannot be made to this tree."""


def parent_of(tree: Tree, path: tuple[str, ...]) -> Tree:
    for name in path[:-1]:
        tree = tree.get(name, None)  # type: ignore[assignment]
        if not isinstance(tree, dict):
            raise Impossible
    return tree


def set_to(path: tuple[str, ...], value: Any) -> Change:
    def change(tree: Tree) -> None:
        parent = parent_of(tree, path)
        old = parent.get(path[-1])
        if old is not None and isinstance(old, dict) != isinstance(value, dict):
            raise Impossible
        parent[path[-1]] = copy.deepcopy(value)

    return change


def removed(path: tuple[str, ...]) -> Change:
    def change(tree: Tree) -> None:
        parent = parent_of(tree, path)
        if path[-1] not in parent:
            raise Impossible
        del parent[path[-1]]

    return change


def moved(source: tuple[str, ...], destination: tuple[str, ...]) -> Change:
    def change(tree: Tree) -> None:
        above, below = parent_of(tree, source), parent_of(tree, destination)
        inside = destination[: len(source)] == source or source[: len(destination)] == destination
        if source[-1] not in above or destination[-1] in below or inside:
            raise Impossible
        below[destination[-1]] = above.pop(source[-1])

    return change


@dataclass
class Model:
    """A transaction of the model; the first one is the committed state."""

    id: str | None
    parent: Model | None
    changes: list[Change] = field(default_factory=list)

    def seen(self) -> Tree:
        tree: Tree = {} if self.parent is None else self.parent.seen()
        for change in self.changes:
            change(tree)
        return tree

    def try_change(self, change: Change) -> bool:
        try:
            change(self.seen())
        except Impossible:
            return False
        self.changes.append(change)
        return True


PATHS = st.sampled_from([("a",), ("b",), ("a", "a"), ("a", "b"), ("a", "c"), ("b", "a"), ("a", "a", "b")])
VALUES = st.sampled_from([1, 2, {}, {"a": 1}, {"a": {}, "b": 2}])
CHANGES = st.one_of(
    st.tuples(st.just("set"), PATHS, VALUES),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("move"), PATHS, PATHS),
)
STEPS = st.one_of(CHANGES, CHANGES, CHANGES, st.tuples(st.sampled_from(["start", "commit", "abort"])))


@settings(max_examples=thorough(25), deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 5), STEPS), min_size=10, max_size=25))
def test_nested_transactions_equal_the_model(cluster: Cluster, steps: list[tuple[int, tuple[Any, ...]]]) -> None:
    home = f"//home/{next(_homes)}"
    call(cluster, "create", type="map_node", path=home)
    open_ones = [Model(None, None)]
    apply(cluster, home, open_ones[0], "set", [("a",), {"a": {"b": 1}, "b": {}}])
    open_ones += [begin(cluster, open_ones[0]), begin(cluster, open_ones[0])]
    for number, (what, *arguments) in steps:
        model = open_ones[number % len(open_ones)]
        if what == "start":
            open_ones.append(begin(cluster, model))
        elif what in ("commit", "abort"):
            if model.parent is None:
                continue
            call(cluster, f"{what}_transaction", transaction_id=model.id)
            if what == "commit":
                model.parent.changes += model.changes
            ended = {id(model)}
            for other in open_ones:
                if id(other.parent) in ended:
                    ended.add(id(other))
            open_ones = [other for other in open_ones if id(other) not in ended]
        else:
            apply(cluster, home, model, what, arguments)
        assert value_of(cluster, home, open_ones[-1].id) == open_ones[-1].seen()
    for model in open_ones:
        assert value_of(cluster, home, model.id) == model.seen()
    for model in open_ones:
        if model.parent is open_ones[0]:
            call(cluster, "abort_transaction", transaction_id=model.id)


def begin(cluster: Cluster, parent: Model) -> Model:
    begun = call(cluster, "start_transaction", transaction_id=parent.id, timeout=600_000).value["transaction_id"]
    return Model(begun, parent)


def apply(cluster: Cluster, home: str, model: Model, what: str, arguments: list[Any]) -> None:
    """Make a change in the cluster and the model, unless a lock of another transaction prevents it."""
    paths = ["/".join((home, *path)) for path in arguments if isinstance(path, tuple)]
    try:
        if what == "set":
            change = set_to(*arguments)
            call(cluster, "set", arguments[1], path=paths[0], force=True, transaction_id=model.id)
        elif what == "remove":
            change = removed(*arguments)
            call(cluster, "remove", path=paths[0], recursive=True, transaction_id=model.id)
        else:
            change = moved(*arguments)
            call(cluster, "move", source_path=paths[0], destination_path=paths[1], transaction_id=model.id)
    except YtError as error:
        if error.code != Code.CYPRESS_LOCK_CONFLICT:
            assert not model.try_change(change)
    else:
        assert model.try_change(change)


# -- cleanup ---------------------------------------------------------------------------------------------------------


def test_an_abort_leaves_no_entries(cluster: Cluster, tmp_path: Path) -> None:
    before = entries(cluster)
    outer = call(cluster, "start_transaction").value["transaction_id"]
    inner = call(cluster, "start_transaction", transaction_id=outer).value["transaction_id"]
    for number, transaction in enumerate((outer, inner)):
        call(cluster, "set", {"a": {"b": 1}}, path=f"//tmp/{number}", transaction_id=transaction)
        call(cluster, "set", 1, path=f"//tmp/@mark{number}", transaction_id=transaction)
    call(cluster, "lock", path="//home", mode="snapshot", transaction_id=inner)
    call(cluster, "abort_transaction", transaction_id=outer)
    assert entries(cluster) == before
    assert not cluster.database.query("SELECT * FROM yt_lock")


def entries(cluster: Cluster) -> list[tuple[Any, ...]]:
    return sorted(cluster.database.query("SELECT node, facet, key, tx, value FROM yt_entry"), key=str)


def test_a_failed_command_changes_nothing(cluster: Cluster) -> None:
    call(cluster, "set", {"a": 1}, path="//tmp/m")
    before = entries(cluster)
    with pytest.raises(YtError):
        call(cluster, "create", type="link", path="//tmp/x/y/z", recursive=True)
    with pytest.raises(YtError):
        call(cluster, "set", {"b": 1, "c": None}, path="//tmp/m", force=True)
    assert entries(cluster) == before


def test_node_types_release_a_deleted_node_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[str] = []

    def remove(context: Context, node: Node) -> None:
        gone.append(node.path)

    monkeypatch.setattr(basic_types.FILE, "remove", remove)

    def start(parent: str | None = None) -> str:
        return str(call(cluster, "start_transaction", transaction_id=parent).value["transaction_id"])

    def create(name: str, transaction: str | None = None) -> None:
        call(cluster, "create", type="file", path=f"//tmp/{name}", transaction_id=transaction)

    def drop(name: str, transaction: str | None = None) -> None:
        call(cluster, "remove", path=f"//tmp/{name}", transaction_id=transaction)

    create("outside")
    drop("outside")
    assert gone == ["//tmp/outside"]
    create("kept")
    outer = start()
    drop("kept", outer)
    call(cluster, "abort_transaction", transaction_id=outer)
    assert gone == ["//tmp/outside"]
    outer = start()
    drop("kept", outer)
    create("made and removed", outer)
    drop("made and removed", outer)
    create("made outside, removed inside", outer)
    inner = start(outer)
    drop("made outside, removed inside", inner)
    create("aborted", inner)
    assert gone[1:] == ["//tmp/made and removed"]
    call(cluster, "remove", path="//tmp/aborted", transaction_id=inner)
    create("aborted", inner)
    call(cluster, "commit_transaction", transaction_id=inner)
    assert gone[2:] == ["//tmp/aborted", "//tmp/made outside, removed inside"]
    call(cluster, "commit_transaction", transaction_id=outer)
    assert gone[4:] == ["//tmp/kept"]
    drop("aborted")
    last = start()
    create("never committed", last)
    call(cluster, "abort_transaction", transaction_id=last)
    assert gone[5:] == ["//tmp/aborted", "//tmp/never committed"]


def test_parts_of_files_are_kept_while_they_are_used(cluster: Cluster) -> None:
    files = cluster.store.files()

    def parts() -> int:
        return len(files.list("/.cypress"))

    def sweep() -> None:
        cluster.contents.sweep(1 << 60)

    call(cluster, "create", type="file", path="//tmp/f")
    call(cluster, "write_file", b"old", path="//tmp/f")
    call(cluster, "copy", source_path="//tmp/f", destination_path="//tmp/copy")
    held = call(cluster, "start_transaction").value["transaction_id"]
    call(cluster, "lock", path="//tmp/f", mode="snapshot", transaction_id=held)
    call(cluster, "write_file", b"new", path="//tmp/f")
    sweep()
    assert parts() == 2
    call(cluster, "remove", path="//tmp/copy")
    sweep()
    assert parts() == 2
    assert call(cluster, "read_file", path="//tmp/f", transaction_id=held).content == b"old"
    call(cluster, "abort_transaction", transaction_id=held)
    sweep()
    assert parts() == 1
    cluster.contents.sweep(0)
    call(cluster, "remove", path="//tmp/f")
    sweep()
    assert parts() == 0


def test_a_transaction_cannot_change_a_node_in_its_snapshot(cluster: Cluster) -> None:
    call(cluster, "set", 1, path="//tmp/value")
    outer = call(cluster, "start_transaction").value["transaction_id"]
    inner = call(cluster, "start_transaction", transaction_id=outer).value["transaction_id"]
    call(cluster, "lock", path="//tmp/value", mode="snapshot", transaction_id=outer)
    for transaction in (outer, inner):
        with pytest.raises(YtError) as conflict:
            call(cluster, "set", 2, path="//tmp/value", transaction_id=transaction)
        assert conflict.value.code == Code.SAME_TRANSACTION_LOCK_CONFLICT
    call(cluster, "set", 3, path="//tmp/value")
    assert value_of(cluster, "//tmp/value", inner) == 1
    call(cluster, "abort_transaction", transaction_id=outer)
    changing = call(cluster, "start_transaction").value["transaction_id"]
    call(cluster, "set", 4, path="//tmp/value", transaction_id=changing)
    with pytest.raises(YtError) as conflict:
        call(cluster, "lock", path="//tmp/value", mode="snapshot", transaction_id=changing)
    assert conflict.value.code == Code.SAME_TRANSACTION_LOCK_CONFLICT
    reading = call(cluster, "start_transaction", transaction_id=changing).value["transaction_id"]
    call(cluster, "lock", path="//tmp/value", mode="snapshot", transaction_id=reading)
    call(cluster, "commit_transaction", transaction_id=reading)
    call(cluster, "commit_transaction", transaction_id=changing)
    assert value_of(cluster, "//tmp/value") == 4


def test_a_deadline_ends_a_transaction_that_is_pinged(cluster: Cluster) -> None:
    ended = call(cluster, "start_transaction", timeout=60_000, deadline="2001-01-01T00:00:00.000000Z")
    with pytest.raises(YtError) as missing:
        call(cluster, "ping_transaction", transaction_id=ended.value["transaction_id"])
    assert missing.value.code == Code.NO_SUCH_TRANSACTION
    with pytest.raises(YtError, match="a time"):
        call(cluster, "start_transaction", deadline="tomorrow")


def test_two_clusters_do_not_share_a_directory(cluster: Cluster) -> None:
    with pytest.raises(Exception, match="another process serves"):
        Cluster(cluster.database.directory)
