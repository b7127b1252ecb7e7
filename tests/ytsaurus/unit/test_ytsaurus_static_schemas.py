"""Schemas of static tables: changes in transactions, and rows that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import SchemaError
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import Code, YtError
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, rows_of, start, value_of
from tests.ytsaurus.unit.ytsaurus_contents import new_path, write

SORTED = [{"name": "a", "type": "int64", "sort_order": "ascending"}, {"name": "b", "type": "string"}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


def test_a_schema_is_altered_in_a_transaction(cluster: Cluster) -> None:
    path = new_path()
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


def test_a_new_schema_cannot_add_an_order(cluster: Cluster) -> None:
    path = new_path()
    write(cluster, path, 2, 1)
    columns = {name: {"name": name, "type": "int64", "sort_order": "ascending"} for name in "ab"}
    with pytest.raises(YtError, match="do not have this order"):
        call(cluster, "alter_table", path=path, schema=[columns["a"]])
    write(cluster, f"<sorted_by=[a;b]>{path}", 1, 2)
    call(cluster, "alter_table", path=path, schema=[*columns.values()])
    for schema in ([columns["b"]], [*columns.values(), {**columns["a"], "name": "c"}]):
        with pytest.raises(YtError, match="do not have this order"):
            call(cluster, "alter_table", path=path, schema=schema)
    call(cluster, "alter_table", path=path, schema=[columns["a"], {"name": "b", "type": "int64"}])
    assert value_of(cluster, f"{path}/@sorted_by") == ["a"]
    tx = start(cluster)
    write(cluster, path, tx=tx)
    call(cluster, "alter_table", path=path, schema=[columns["b"]], transaction_id=tx)
    commit(cluster, tx)
    assert value_of(cluster, f"{path}/@sorted_by") == ["b"]


def test_changes_that_cannot_be_rolled_back_are_refused_in_transactions(cluster: Cluster) -> None:
    static, dynamic, queue = (new_path() for _ in range(3))
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
def test_a_failing_write_changes_nothing(cluster: Cluster, inside: bool, body: list[Any]) -> None:
    there, missing = new_path(), new_path()
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
