"""Deletion of unused contents of files and static tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start, value_of
from tests.ytsaurus.unit.ytsaurus_contents import Content, lock, numbers, write


def pieces(cluster: Cluster) -> int:
    cluster.contents.sweep(1 << 60)
    count = "SELECT (SELECT count(*) FROM yt_static_piece) + (SELECT count(*) FROM file_node WHERE NOT directory)"
    return int(cluster.database.query(count)[0][0])


@pytest.mark.parametrize("kind", ["table", "file"])
def test_aborted_and_replaced_contents_are_deleted_even_after_a_restart(tmp_path: Path, kind: str) -> None:
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
    lock(content, "snapshot", snapshot)
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


def test_a_copy_does_not_keep_later_appends_to_the_original(tmp_path: Path) -> None:
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


def test_appends_do_not_copy_existing_rows(tmp_path: Path) -> None:
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
