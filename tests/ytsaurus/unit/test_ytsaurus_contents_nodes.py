"""Creating, moving, copying and concatenating files and static tables in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start, value_of
from tests.ytsaurus.unit.ytsaurus_contents import Content, call_in, new_content


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.fixture(params=["table", "file"])
def content(cluster: Cluster, request: pytest.FixtureRequest) -> Content:
    return new_content(cluster, request.param)


def test_nodes_are_created_moved_copied_and_removed_in_a_transaction(cluster: Cluster, content: Content) -> None:
    for end in (abort, commit):
        tx = start(cluster)
        made, copy, moved = (content.other(name) for name in ("made", "copy", "moved"))
        call(cluster, "create", type=content.kind, path=made.path, transaction_id=tx)
        made.append(7, tx=tx)
        content.append(3, tx=tx)
        call_in(content, "copy", tx, source_path=content.path, destination_path=copy.path)
        copy.append(4, tx=tx)
        call_in(content, "move", tx, source_path=content.path, destination_path=moved.path)
        call_in(content, "remove", tx, path=made.path)
        call_in(content, "create", tx, type=content.kind, path=content.path)
        content.append(8, tx=tx)
        assert (copy.read(tx), moved.read(tx), content.read(tx)) == ([1, 2, 3, 4], [1, 2, 3], [8])
        assert content.read() == [1, 2]
        end(cluster, tx)
        there = [call(cluster, "exists", path=each.path).value["value"] for each in (made, copy, moved)]
        assert there == ([False] * 3 if end is abort else [False, True, True])
    assert (copy.read(), moved.read(), content.read()) == ([1, 2, 3, 4], [1, 2, 3], [8])


def test_a_copy_is_independent_of_later_writes(cluster: Cluster, content: Content) -> None:
    copy = content.other("copy")
    call(cluster, "copy", source_path=content.path, destination_path=copy.path)
    content.append(3)
    copy.append(4)
    copy.append(5)
    content.append(6)
    assert (content.read(), copy.read()) == ([1, 2, 3, 6], [1, 2, 4, 5])


def test_attributes_describe_the_visible_content(cluster: Cluster, content: Content) -> None:
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
