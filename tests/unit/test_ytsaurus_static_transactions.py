"""What static tables and files hold obeys master transactions: isolated, merged by a commit, gone with an abort."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.endpoints.ytsaurus.cluster import Cluster
from headrace.errors import SchemaError
from headrace.wire.ytsaurus.errors import Code, YtError
from tests.unit.ytsaurus_cluster import abort, bytes_of, call, commit, rows_of, start, value_of

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@dataclass(frozen=True)
class Content:
    """A node that holds a list of numbers: as rows, or as lines of a file."""

    cluster: Cluster
    kind: str
    path: str

    def write(self, *numbers: int, tx: str | None = None, append: bool = False) -> None:
        path = f"<append=%true>{self.path}" if append else self.path
        value: Any = [{"a": number} for number in numbers]
        if self.kind == "file":
            value = b"".join(b"%d\n" % number for number in numbers)
        call(self.cluster, f"write_{self.kind}", value, path=path, transaction_id=tx)

    def append(self, *numbers: int, tx: str | None = None) -> None:
        self.write(*numbers, tx=tx, append=True)

    def read(self, tx: str | None = None) -> list[int]:
        if self.kind == "file":
            return [int(line) for line in bytes_of(self.cluster, self.path, tx).split()]
        return [row["a"] for row in rows_of(self.cluster, self.path, tx)]

    def other(self, name: str) -> Content:
        return Content(self.cluster, self.kind, f"{self.path}_{name}")


@pytest.fixture(params=["table", "file"])
def content(cluster: Cluster, request: pytest.FixtureRequest) -> Content:
    content = Content(cluster, request.param, f"//tmp/{request.param}_{next(_names)}")
    call(cluster, "create", type=content.kind, path=content.path)
    content.write(1, 2)
    return content


def path_of(cluster: Cluster) -> str:
    return f"//tmp/t_{next(_names)}"


# -- isolation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("append", [False, True], ids=["replace", "append"])
def test_what_is_written_is_seen_by_the_transaction_and_its_nested_ones_until_the_commit(
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
def test_an_abort_leaves_the_content_as_it_was(cluster: Cluster, content: Content, append: bool) -> None:
    outer = start(cluster)
    inner = start(cluster, outer)
    content.write(3, tx=inner, append=append)
    commit(cluster, inner)
    content.append(4, tx=outer)
    abort(cluster, outer)
    assert content.read() == [1, 2]
    content.append(5)
    assert content.read() == [1, 2, 5]


def test_a_transaction_whose_time_is_over_leaves_nothing(cluster: Cluster, content: Content) -> None:
    tx = start(cluster, timeout=1000)
    content.write(3, tx=tx)
    deadline = time.monotonic() + 30
    while call(cluster, "exists", path=f"#{tx}").value["value"]:
        assert content.read() == [1, 2]
        assert time.monotonic() < deadline
    content.write(4)
    assert content.read() == [4]
    with pytest.raises(YtError) as gone:
        commit(cluster, tx)
    assert gone.value.code == Code.NO_SUCH_TRANSACTION


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


def test_transactions_append_to_one_table_at_once_and_all_commits_appear(cluster: Cluster, content: Content) -> None:
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


def test_nested_transactions_append_at_once(cluster: Cluster, content: Content) -> None:
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


# -- locks --------------------------------------------------------------------------------------------------------

LOCKS: dict[str, Callable[[Content, str | None], None]] = {
    "append": lambda content, tx: content.append(9, tx=tx),
    "replace": lambda content, tx: content.write(9, tx=tx),
    "remove": lambda content, tx: _call(content, "remove", tx, path=content.path),
    "move": lambda content, tx: _call(
        content, "move", tx, source_path=content.path, destination_path=content.other("m").path
    ),
    "attribute": lambda content, tx: _call(content, "set", tx, 1, path=f"{content.path}/@x"),
    "shared": lambda content, tx: _lock(content, "shared", tx),
    "exclusive": lambda content, tx: _lock(content, "exclusive", tx),
    "snapshot": lambda content, tx: _lock(content, "snapshot", tx),
    "read": lambda content, tx: _read(content, tx),
}


def _read(content: Content, tx: str | None) -> None:
    assert content.read(tx) == [1, 2]


def _call(content: Content, name: str, tx: str | None, *value: Any, **parameters: Any) -> None:
    call(content.cluster, name, *value, **parameters, transaction_id=tx)


def _lock(content: Content, mode: str, tx: str | None) -> None:
    if tx is not None:
        _call(content, "lock", tx, path=content.path, mode=mode)


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
def test_what_a_transaction_does_lets_others_do(
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
            # What is allowed is not done here, for it would change what the next steps find.
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


def test_a_snapshot_is_what_was_there_whatever_happens_to_the_node(cluster: Cluster, content: Content) -> None:
    tx = start(cluster)
    node = value_of(cluster, f"{content.path}/@id")
    _lock(content, "snapshot", tx)
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


def test_there_is_no_snapshot_of_what_a_nested_transaction_changes(cluster: Cluster, content: Content) -> None:
    outer = start(cluster)
    inner = start(cluster, start(cluster, outer))
    content.append(3, tx=inner)
    with pytest.raises(YtError) as conflict:
        call(cluster, "lock", path=content.path, mode="snapshot", transaction_id=outer, waitable=False)
    assert conflict.value.code == Code.DESCENDANT_TRANSACTION_LOCK_CONFLICT
    _lock(content, "snapshot", start(cluster, inner))
    abort(cluster, outer)


def test_a_lock_that_waits_goes_to_the_outer_transaction_or_ends_with_its_node(
    cluster: Cluster, content: Content
) -> None:
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


def test_a_lock_that_waited_keeps_what_is_there_when_it_is_given(cluster: Cluster, content: Content) -> None:
    first, second = start(cluster), start(cluster)
    content.write(3, tx=first)
    call(cluster, "lock", path=content.path, mode="shared", waitable=True, transaction_id=second)
    commit(cluster, first)
    content.append(4)
    assert content.read(second) == [3]
    content.append(5, tx=second)
    commit(cluster, second)
    assert content.read() == [3, 4, 5]


def test_an_unlocked_node_is_no_longer_kept(cluster: Cluster, content: Content) -> None:
    tx = start(cluster)
    _lock(content, "shared", tx)
    content.append(3)
    assert content.read(tx) == [1, 2]
    call(cluster, "unlock", path=content.path, transaction_id=tx)
    assert content.read(tx) == [1, 2, 3]
    content.append(4, tx=tx)
    call(cluster, "unlock", path=content.path, transaction_id=tx)
    assert content.read(tx) == [1, 2, 3, 4]
    _lock(content, "exclusive", tx)
    with pytest.raises(YtError, match="modified"):
        call(cluster, "unlock", path=content.path, transaction_id=tx)
    abort(cluster, tx)


# -- nodes ----------------------------------------------------------------------------------------------------------


def test_nodes_are_made_moved_copied_and_removed_in_a_transaction(cluster: Cluster, content: Content) -> None:
    for end in (abort, commit):
        tx = start(cluster)
        made, copy, moved = (content.other(name) for name in ("made", "copy", "moved"))
        call(cluster, "create", type=content.kind, path=made.path, transaction_id=tx)
        made.append(7, tx=tx)
        content.append(3, tx=tx)
        _call(content, "copy", tx, source_path=content.path, destination_path=copy.path)
        copy.append(4, tx=tx)
        _call(content, "move", tx, source_path=content.path, destination_path=moved.path)
        _call(content, "remove", tx, path=made.path)
        _call(content, "create", tx, type=content.kind, path=content.path)
        content.append(8, tx=tx)
        assert (copy.read(tx), moved.read(tx), content.read(tx)) == ([1, 2, 3, 4], [1, 2, 3], [8])
        assert content.read() == [1, 2]
        end(cluster, tx)
        there = [call(cluster, "exists", path=each.path).value["value"] for each in (made, copy, moved)]
        assert there == ([False] * 3 if end is abort else [False, True, True])
    assert (copy.read(), moved.read(), content.read()) == ([1, 2, 3, 4], [1, 2, 3], [8])


def test_a_copy_shares_nothing_that_is_written_later(cluster: Cluster, content: Content) -> None:
    copy = content.other("copy")
    call(cluster, "copy", source_path=content.path, destination_path=copy.path)
    content.append(3)
    copy.append(4)
    copy.append(5)
    content.append(6)
    assert (content.read(), copy.read()) == ([1, 2, 3, 6], [1, 2, 4, 5])


def test_attributes_are_those_that_the_transaction_sees(cluster: Cluster, content: Content) -> None:
    names = ["chunk_count", "uncompressed_data_size"] + (["row_count"] if content.kind == "table" else [])

    def seen(tx: str | None) -> list[int]:
        return [value_of(cluster, f"{content.path}/@{name}", tx) for name in names]

    def revision(tx: str | None = None) -> int:
        return int(value_of(cluster, f"{content.path}/@revision", tx))

    before, changed = seen(None), revision()
    size = before[1]
    tx, other = start(cluster), start(cluster)
    content.append(3, 4, tx=tx)
    call(cluster, "set", 5, path=f"{content.path}/@mark", transaction_id=tx)
    assert seen(tx) == [2, 2 * size, 4][: len(names)]
    assert value_of(cluster, f"{content.path}/@mark", tx) == 5
    assert revision(tx) > changed
    assert (seen(None), seen(other), revision()) == (before, before, changed)
    assert not call(cluster, "exists", path=f"{content.path}/@mark").value["value"]
    content.append(5, tx=other)
    commit(cluster, other)
    after_other = revision()
    commit(cluster, tx)
    assert seen(None) == [3, 5 * size // 2, 5][: len(names)]
    assert revision() > after_other > changed
    assert value_of(cluster, f"{content.path}/@mark") == 5


def test_a_concatenation_is_a_write(cluster: Cluster, content: Content) -> None:
    other = content.other("source")
    call(cluster, "create", type=content.kind, path=other.path)
    other.write(5, 6)
    for append, after in ((True, [1, 2, 5, 6, 1, 2]), (False, [5, 6, 1, 2])):
        first, second = start(cluster), start(cluster)
        path = f"<append=%true>{content.path}" if append else content.path
        sources = [other.path, content.path]
        call(cluster, "concatenate", source_paths=sources, destination_path=path, transaction_id=first)
        assert (content.read(first), content.read(second), content.read()) == (after, [1, 2], [1, 2])
        if append:
            content.append(3, tx=second)
        else:
            with pytest.raises(YtError):
                content.append(3, tx=second)
        abort(cluster, second)
        content_after = content.other("done")
        abort(cluster, first)
        assert content.read() == [1, 2]
    call(cluster, "concatenate", source_paths=[other.path, content.path], destination_path=content.path)
    content.append(7)
    other.append(8)
    assert (content.read(), other.read()) == ([5, 6, 1, 2, 7], [5, 6, 8])
    assert not call(cluster, "exists", path=content_after.path).value["value"]


def test_concatenated_tables_fit_the_schema_and_the_order(cluster: Cluster) -> None:
    paths = [path_of(cluster) for _ in range(3)]
    schema = "<unique_keys={}>[{{name=a;type=int64;sort_order=ascending}}]"
    for path, unique, rows in zip(paths, ("%true", "%true", "%false"), ([1, 2], [3], [3, 3]), strict=True):
        write(cluster, f"<schema={schema.format(unique)}>{path}", *rows)
    first, second, third = paths
    weak = path_of(cluster)
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


# -- schemas and order ----------------------------------------------------------------------------------------------

SORTED = [{"name": "a", "type": "int64", "sort_order": "ascending"}, {"name": "b", "type": "string"}]


def write(cluster: Cluster, path: str, *rows: Any, tx: str | None = None) -> None:
    call(
        cluster,
        "write_table",
        [row if isinstance(row, dict) else {"a": row} for row in rows],
        path=path,
        transaction_id=tx,
    )


def numbers(cluster: Cluster, path: str, tx: str | None = None) -> list[Any]:
    return [row["a"] for row in rows_of(cluster, path, tx)]


def test_a_schema_is_altered_in_a_transaction(cluster: Cluster) -> None:
    path = path_of(cluster)
    schema = [{"name": "a", "type": "int64"}]
    call(cluster, "create", type="table", path=path, attributes={"schema": schema})
    write(cluster, path, 1)
    for end in (abort, commit):
        tx, other = start(cluster), start(cluster)
        call(cluster, "alter_table", path=path, schema=[*schema, {"name": "b", "type": "int64"}], transaction_id=tx)
        write(cluster, f"<append=%true>{path}", {"a": 2, "b": 3}, tx=tx)
        assert rows_of(cluster, path, tx) == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
        assert rows_of(cluster, path, other) == rows_of(cluster, path) == [{"a": 1}]
        with pytest.raises(YtError) as conflict:
            write(cluster, f"<append=%true>{path}", 3, tx=other)
        assert conflict.value.code == Code.CYPRESS_LOCK_CONFLICT
        end(cluster, tx)
        abort(cluster, other)
    assert rows_of(cluster, path) == [{"a": 1, "b": None}, {"a": 2, "b": 3}]
    tx = start(cluster)
    write(cluster, f"<schema=[{{name=x;type=int64}}]>{path}", {"x": 1}, tx=tx)
    assert (rows_of(cluster, path, tx), len(rows_of(cluster, path))) == ([{"x": 1}], 2)
    abort(cluster, tx)


def test_a_schema_promises_no_order_that_the_rows_need_not_have(cluster: Cluster) -> None:
    path = path_of(cluster)
    write(cluster, path, 2, 1)
    columns = {name: {"name": name, "type": "int64", "sort_order": "ascending"} for name in "ab"}
    with pytest.raises(YtError, match="not sorted so"):
        call(cluster, "alter_table", path=path, schema=[columns["a"]])
    write(cluster, f"<sorted_by=[a;b]>{path}", 1, 2)
    call(cluster, "alter_table", path=path, schema=[*columns.values()])
    for schema in ([columns["b"]], [*columns.values(), {**columns["a"], "name": "c"}]):
        with pytest.raises(YtError, match="not sorted so"):
            call(cluster, "alter_table", path=path, schema=schema)
    call(cluster, "alter_table", path=path, schema=[columns["a"], {"name": "b", "type": "int64"}])
    assert value_of(cluster, f"{path}/@sorted_by") == ["a"]
    tx = start(cluster)
    write(cluster, path, tx=tx)
    call(cluster, "alter_table", path=path, schema=[columns["b"]], transaction_id=tx)
    commit(cluster, tx)
    assert value_of(cluster, f"{path}/@sorted_by") == ["b"]


def test_what_cannot_be_undone_with_a_transaction_is_refused_in_one(cluster: Cluster) -> None:
    static, dynamic, queue = (path_of(cluster) for _ in range(3))
    config = {"schema": [{"name": "a", "type": "int64"}], "dynamic": True, "auto_trim_config": {"enable": True}}
    call(cluster, "create", type="table", path=queue, attributes=config)
    call(cluster, "create", type="table", path=static, attributes={"schema": SORTED})
    call(cluster, "create", type="table", path=dynamic, attributes={"schema": SORTED, "dynamic": True})
    tx = start(cluster)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("alter_table", {"path": static, "dynamic": True}),
        ("alter_table", {"path": dynamic, "schema": [*SORTED, {"name": "c", "type": "int64"}]}),
        ("move", {"source_path": dynamic, "destination_path": f"{dynamic}_moved"}),
        ("remove", {"path": f"{queue}/@auto_trim_config"}),
    ]
    for name, parameters in refused:
        with pytest.raises(YtError, match="in a master transaction"):
            call(cluster, name, **parameters, transaction_id=tx)
    with pytest.raises(YtError, match="in a master transaction"):
        call(cluster, "set", {"enable": False}, path=f"{queue}/@auto_trim_config", transaction_id=tx)
    assert value_of(cluster, f"{queue}/@auto_trim_config") == {"enable": True}
    write(cluster, static, 1, tx=tx)
    with pytest.raises(YtError) as conflict:
        call(cluster, "alter_table", path=static, dynamic=True)
    assert conflict.value.code == Code.CYPRESS_LOCK_CONFLICT
    commit(cluster, tx)
    call(cluster, "alter_table", path=static, dynamic=True)
    assert value_of(cluster, f"{static}/@dynamic")
    assert value_of(cluster, f"{static}/@chunk_row_count") == 1


@pytest.mark.parametrize("inside", [True, False], ids=["in a transaction", "outside"])
@pytest.mark.parametrize("body", [[{"a": 3, "b": "x"}, {"a": "text"}], [{"a": 3}, {"c": 1}], [{"a": 3}, {"a": 2}]])
def test_a_write_that_fails_in_its_middle_changes_nothing(cluster: Cluster, inside: bool, body: list[Any]) -> None:
    there, missing = path_of(cluster), path_of(cluster)
    call(cluster, "create", type="table", path=there, attributes={"schema": SORTED})
    write(cluster, there, 1)
    tx = start(cluster) if inside else None
    schema = "[{name=a;type=int64;sort_order=ascending};{name=b;type=string};{name=d;type=int64}]"
    for path in (there, f"<append=%true>{there}", f"<schema={schema}>{there}", f"<schema={schema}>{missing}"):
        with pytest.raises((YtError, SchemaError)):
            write(cluster, path, *body, tx=tx)
    assert not call(cluster, "exists", path=missing, transaction_id=tx).value["value"]
    assert rows_of(cluster, there, tx) == [{"a": 1, "b": None}]
    assert value_of(cluster, f"{there}/@lock_count") == 0
    if tx:
        abort(cluster, tx)


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
def test_rows_of_a_sorted_table_come_in_its_order(
    cluster: Cluster, unique: bool, writes: list[list[Any]], code: int
) -> None:
    path = path_of(cluster)
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
def test_every_type_of_keys_has_its_order(cluster: Cluster, kind: str, ascending: list[Any]) -> None:
    path = path_of(cluster)
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
        path = path_of(cluster)
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


def test_the_order_is_checked_against_what_was_committed_before_the_exclusive_lock(cluster: Cluster) -> None:
    path = path_of(cluster)
    write(cluster, f"<schema=[{{name=a;type=int64;sort_order=ascending}}]>{path}", 1)
    tx = start(cluster)
    call(cluster, "set", 1, path=f"{path}/@mark", transaction_id=tx)
    with pytest.raises(YtError):
        write(cluster, f"<append=%true>{path}", 5)
    call(cluster, "lock", path=path, mode="shared", transaction_id=tx)
    write(cluster, f"<append=%true>{path}", 5, tx=tx)
    commit(cluster, tx)
    assert numbers(cluster, path) == [1, 5]


def test_rows_without_a_schema_are_sorted_as_they_were_last_written(cluster: Cluster) -> None:
    path = path_of(cluster)

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
def test_attributes_of_a_path_that_do_not_fit_are_refused(cluster: Cluster, attributes: str) -> None:
    path = path_of(cluster)
    write(cluster, f"<schema=[{{name=a;type=int64;sort_order=ascending}}]>{path}", 1)
    with pytest.raises(YtError):
        write(cluster, f"<{attributes}>{path}", 2)
    assert numbers(cluster, path) == [1]


# -- what is left -----------------------------------------------------------------------------------------------------


def pieces(cluster: Cluster) -> int:
    cluster.contents.sweep(1 << 60)
    count = "SELECT (SELECT count(*) FROM yt_static_piece) + (SELECT count(*) FROM file_node WHERE NOT directory)"
    return int(cluster.database.query(count)[0][0])


@pytest.mark.parametrize("kind", ["table", "file"])
def test_what_was_aborted_or_replaced_is_swept_also_by_a_later_server(tmp_path: Path, kind: str) -> None:
    cluster = Cluster(tmp_path)
    content = Content(cluster, kind, "//tmp/c")
    call(cluster, "create", type=kind, path=content.path)
    content.write(1)
    content.write(2)
    assert pieces(cluster) == 1
    aborted, left, snapshot = start(cluster), start(cluster), start(cluster)
    content.append(3, tx=aborted)
    content.append(4, tx=start(cluster, aborted))
    content.append(5, tx=left)
    _lock(content, "snapshot", snapshot)
    assert pieces(cluster) == 4
    abort(cluster, aborted)
    cluster.close()

    cluster = Cluster(tmp_path)
    content = Content(cluster, kind, "//tmp/c")
    assert pieces(cluster) == 2
    assert (content.read(), content.read(left)) == ([2], [2, 5])
    commit(cluster, left)
    content.write(6)
    assert pieces(cluster) == 2
    assert (content.read(), content.read(snapshot)) == ([6], [2])
    abort(cluster, snapshot)
    assert pieces(cluster) == 1
    call(cluster, "remove", path=content.path)
    assert pieces(cluster) == 0
    assert cluster.database.query("SELECT * FROM yt_part_list") == []
    cluster.close()


def test_a_copy_does_not_keep_what_is_appended_to_the_original_later(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    write(cluster, "//tmp/t", 1)
    call(cluster, "copy", source_path="//tmp/t", destination_path="//tmp/copy")
    call(cluster, "concatenate", source_paths=["//tmp/t", "//tmp/t"], destination_path="<append=%true>//tmp/copy")
    write(cluster, "<append=%true>//tmp/t", 2)
    assert pieces(cluster) == 2
    for _ in range(5):
        call(cluster, "concatenate", source_paths=[], destination_path="<append=%true>//tmp/copy")
    version = cluster.cypress.tree.version(("",), value_of(cluster, "//tmp/copy/@id"))
    assert version is not None
    assert len(version.whole) == 2
    call(cluster, "remove", path="//tmp/t")
    assert pieces(cluster) == 1
    write(cluster, "<append=%true>//tmp/copy", 3)
    assert numbers(cluster, "//tmp/copy") == [1, 1, 1, 3]
    cluster.close()


def test_appends_outside_of_transactions_do_not_copy_what_is_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    call(cluster, "create", type="table", path="//tmp/t")
    for number in range(20):
        tx = start(cluster) if number % 2 else None
        write(cluster, "<append=%true>//tmp/t", number, tx=tx)
        if tx:
            commit(cluster, tx)
    cluster.contents.sweep(1 << 60)
    assert cluster.database.query("SELECT count(DISTINCT list), count(*) FROM yt_part_list") == [(1, 20)]
    assert numbers(cluster, "//tmp/t") == list(range(20))
    cluster.close()
