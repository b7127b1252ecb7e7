"""Commits of Delta tables beside those of other programs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pyarrow as pa
import pytest

from headrace.errors import SchemaError, StoreBusyError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.rows import to_arrow
from headrace_lake import places
from headrace_lake.delta import changes, commits, maintenance
from headrace_lake.delta.snapshot import ConflictError
from headrace_lake.delta.table import DeltaTable
from headrace_lake.lookup import Keys
from tests.lake.jobs import write
from tests.lake.lakes import COLUMNS, Interference, append, foreign, opened, orphans, rows_of

OLD = [{"id": number, "name": "old"} for number in range(6)]


@pytest.fixture(params=[False, True], ids=["files", "vectors"])
def store(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(changes, "_MOST_DELETED", 1.0)
    found = opened(tmp_path, deletion_vectors=request.param)
    for part in (OLD[:3], OLD[3:]):
        found.table("t").put(part)
    return found


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Interference:
    return Interference(monkeypatch)


def names(directory: Path) -> dict[int, str]:
    """Return the rows, each key once."""
    rows = rows_of(directory)
    found = {row["id"]: row["name"] for row in rows}
    assert len(found) == len(rows)
    return found


STEPS: dict[str, tuple[Callable[[Path], Any], dict[int, str]]] = {
    "optimize": (lambda path: foreign(path).optimize.compact(), {}),
    "append": (lambda path: append(path, [{"id": 50, "name": "theirs"}]), {50: "theirs"}),
    "append of the same key": (lambda path: append(path, [{"id": 99, "name": "theirs"}]), {}),
    "delete": (lambda path: foreign(path).delete("id = 4"), {4: ""}),
    "delete of the same key": (lambda path: foreign(path).delete("id = 1"), {}),
    "vacuum": (lambda path: foreign(path).vacuum(0, enforce_retention_duration=False, dry_run=False), {}),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("way", ["put", "publication"])
def test_a_step_of_another_program_before_the_commit_costs_no_row(
    store: Store, tmp_path: Path, other: Interference, step: str, way: str
) -> None:
    act, effect = STEPS[step]
    other.steps = [lambda: act(tmp_path), lambda: act(tmp_path)] if "append" not in step else [lambda: act(tmp_path)]
    rows = [{"id": 1, "name": "new"}, {"id": 99, "name": "new"}]
    if way == "put":
        store.table("t").put(rows)
    else:
        publisher = store.publisher("job", "t")
        batches = to_arrow(rows, store.table("t").schema, columns="all").to_batches()
        staged = publisher.stage(0, batches, table="t", change=RowChange.PUT)
        assert publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged))])
        assert publisher.published(0)
    expected = {row["id"]: row["name"] for row in OLD} | {1: "new", 99: "new"} | effect
    assert names(tmp_path) == {key: name for key, name in expected.items() if name}
    assert orphans(tmp_path) == set()


@pytest.mark.parametrize("way", ["put", "batch", "get", "get_many"])
def test_a_file_that_vacuum_deletes_meanwhile_costs_an_attempt(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    rows_of_keys, steps = Keys.rows_of, [1]

    def after_a_step(*arguments: Any) -> Any:
        if steps:
            steps.pop()
            foreign(tmp_path).optimize.compact()
            foreign(tmp_path).vacuum(0, enforce_retention_duration=False, dry_run=False)
        return rows_of_keys(*arguments)

    monkeypatch.setattr(Keys, "rows_of", after_a_step)
    table, row = store.table("t"), {"id": 1, "name": "new"}
    expected = {each["id"]: each["name"] for each in OLD}
    if way == "get":
        assert table.get({"id": 1}) == OLD[1]
    elif way == "get_many":
        assert table.get_many([{"id": 1}]).to_pylist() == [OLD[1]]
    else:
        expected[1] = "new"
        if way == "put":
            table.put(row)
        else:
            # A batch of several tables is checked before it is decided.
            store.create_table("u", {"id": "long", "name": "string"}, "id")
            publisher = store.publisher("job", "sink")
            publisher.publish(0, [write(store, publisher, 0, name, [row], RowChange.PUT) for name in "tu"])
    assert not steps
    assert names(tmp_path) == expected
    assert orphans(tmp_path) == set()


def test_an_update_reads_its_rows_again_after_a_conflict(store: Store, tmp_path: Path, other: Interference) -> None:
    store.table("t").add_columns({"n": "long"})
    other.steps = [lambda: foreign(tmp_path).update({"name": "'theirs'"}, predicate="id = 2")]
    store.table("t").update({"id": 2, "n": 7})
    assert store.table("t").get({"id": 2}) == {"id": 2, "name": "theirs", "n": 7}


def test_a_new_column_before_the_commit_is_null(store: Store, tmp_path: Path, other: Interference) -> None:
    other.steps = [lambda: store.table("t").add_columns({"n": "long"})]
    store.table("t").put([{"id": 1, "name": "new"}])
    assert store.table("t").get({"id": 1}) == {"id": 1, "name": "new", "n": None}
    assert len(names(tmp_path)) == 6


def test_a_table_that_is_replaced_before_the_commit_is_an_error(store: Store, other: Interference) -> None:
    def replace() -> None:
        store.drop_table("t")
        store.create_table("t", COLUMNS, "id")
        raise ConflictError("replaced")

    other.steps = [replace]
    with pytest.raises(SchemaError, match="replaced"):
        store.table("t").put([{"id": 1, "name": "new"}])
    assert store.table("t").scan().read_all().num_rows == 0


def test_commits_that_always_come_first_are_an_error(
    store: Store, tmp_path: Path, other: Interference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "_PATIENCE_SECONDS", 0.05)
    other.steps = [lambda: foreign(tmp_path).update({"name": "'theirs'"}, predicate="id = 5")] * 100
    with pytest.raises(StoreBusyError):
        store.table("t").put([{"id": 1, "name": "new"}])
    assert names(tmp_path)[1] == "old"


def test_files_and_log_are_on_the_disk_when_a_write_returns(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    append(tmp_path, [{"id": 50, "name": "theirs"}])
    store.table("t").put([{"id": 1, "name": "new"}])
    table = tmp_path / "t"
    entries = [str(path) for path in sorted((table / "_delta_log").glob("*.json"))]
    assert [path for path in synced if path.endswith(".json")] == entries[-2:]
    data = [path for path in synced if path.endswith(".parquet")]
    assert data
    # Files first, then their directory, then the log.
    assert synced.index(str(table)) > max(map(synced.index, data))
    assert synced[-3:] == [*entries[-2:], str(table / "_delta_log")]


def test_an_interrupted_write_leaves_no_file(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    before = {path.name for path in (tmp_path / "t").iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="No space left"):
        store.table("t").put([{"id": 1, "name": "new"}])
    assert {path.name for path in (tmp_path / "t").iterdir()} == before


def test_an_answer_that_is_lost_loses_no_row(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = places._create

    def repeats(place: Path, content: bytes) -> None:
        create(place, content)
        create(place, content)

    def fails(place: Path, content: bytes) -> None:
        create(place, content)
        raise OSError(5, "Input/output error")

    publisher = store.publisher("job", "t")
    for batch, answer in enumerate((repeats, fails)):
        batches = to_arrow([{"id": 1, "name": f"n{batch}"}], store.table("t").schema, columns="all").to_batches()
        write = Write("t", RowChange.PUT, tuple(publisher.stage(batch, batches, table="t", change=RowChange.PUT)))
        with monkeypatch.context() as patch:
            patch.setattr(places, "_create", answer)
            if answer is repeats:
                assert publisher.publish(batch, [write])
            else:
                with pytest.raises(StoreError, match="Input/output error"):
                    publisher.publish(batch, [write])
        assert publisher.published(batch)
        assert names(tmp_path) == {row["id"]: row["name"] for row in OLD} | {1: f"n{batch}"}


def replayed_feed(directory: Path) -> dict[int, str]:
    """Return the rows of the table as its change feed tells them."""
    rows = pa.table(foreign(directory).load_cdf(1, allow_out_of_range=True).read_all()).to_pylist()
    found: dict[int, str] = {}
    # A version removes a key before it adds it again.
    for row in sorted(
        rows, key=lambda each: (each["_commit_version"], each["_change_type"] in ("insert", "update_postimage"))
    ):
        if row["_change_type"] in ("delete", "update_preimage"):
            assert found.pop(row["id"]) == row["name"]
        else:
            assert found.setdefault(row["id"], row["name"]) == row["name"]
    return found


KEYS = st.integers(0, 9)
STEP = st.one_of(
    st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=5)),
    st.tuples(st.just("delete"), st.lists(KEYS, min_size=1, max_size=5)),
    st.tuples(st.just("update"), KEYS),
    st.tuples(st.just("append"), KEYS),
    st.tuples(st.just("their delete"), KEYS),
    st.tuples(st.sampled_from(["optimize", "vacuum", "checkpoint", "compact"]), st.none()),
)


@hypothesis.settings(max_examples=15, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(steps=st.lists(st.tuples(STEP, st.booleans()), max_size=8), most=st.sampled_from([0.0, 0.5, 1.0]))
def test_random_steps_of_several_programs(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], most: float
) -> None:
    """Steps of other programs come before a step of headrace, or between its checks and its commit."""
    directory = tmp_path_factory.mktemp("model")
    model: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as patch, opened(directory, deletion_vectors=most > 0) as store:
        patch.setattr(changes, "_MOST_DELETED", most)
        foreign(directory).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        other, table = Interference(patch), store.table("t")
        assert isinstance(table, DeltaTable)
        for number, ((kind, value), between) in enumerate(steps):
            name = f"n{number}"
            if kind == "put":
                table.put([{"id": key, "name": name} for key in value])
                model |= dict.fromkeys(value, name)
            elif kind == "delete":
                table.delete([{"id": key} for key in value])
                model = {key: old for key, old in model.items() if key not in value}
            elif kind == "update":
                table.update({"id": value, "name": name})
                model[value] = name
            theirs: dict[str, Callable[[], Any]] = {
                "compact": lambda: maintenance.compact(table),
                "optimize": lambda: foreign(directory).optimize.compact(),
                "vacuum": lambda: foreign(directory).vacuum(0, enforce_retention_duration=False, dry_run=False),
                "checkpoint": lambda: foreign(directory).create_checkpoint(),
            }
            if kind in theirs:
                act = theirs[kind]
                if between:
                    other.steps.append(act)
                else:
                    act()
            elif kind == "append" and value not in model:
                append(directory, [{"id": value, "name": name}])
                model[value] = name
            elif kind == "their delete":
                foreign(directory).delete(f"id = {value}")
                model.pop(value, None)
        other.steps = []
        assert names(directory) == model
        if all(kind != "vacuum" for (kind, _), _ in steps):
            assert replayed_feed(directory) == model
        assert {row["id"]: row["name"] for row in table} == model
