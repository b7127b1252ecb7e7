"""Tasks open the store for which they were planned, and no other."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import headrace
from headrace.errors import NotFoundError, StoreError, UnsupportedError
from headrace.formats.registry import source_of
from headrace.formats.source import Source
from headrace.ports.identity import StoreIdentity, planned_for


def make_store(path: Path) -> None:
    with headrace.open(path, create=True, synchronous="off") as store:
        store.create_queue("clicks", {"user": "string"})


def planned(path: Path) -> Source:
    """Return the source of a queue as a task has it."""
    source = source_of("headrace", {"store": str(path), "queue": "clicks"})
    assert source.reads_queues()
    return pickle.loads(pickle.dumps(source))  # type: ignore[no-any-return]


def test_a_task_opens_the_store_of_its_plan(tmp_path: Path) -> None:
    make_store(tmp_path / "shop")
    with planned(tmp_path / "shop").open_store() as store:
        assert store.queues() == ["clicks"]


def test_another_store_at_the_same_path_is_refused(tmp_path: Path) -> None:
    make_store(tmp_path / "shop")
    task = planned(tmp_path / "shop")
    (tmp_path / "shop").rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match=r"the store of this query is not on machine .*PostgreSQL"):
        task.open_store()
    assert not (tmp_path / "shop").exists()
    make_store(tmp_path / "shop")
    with pytest.raises(StoreError, match=r"has another store at this address than the driver; received: .*; valid: "):
        task.open_store()


def test_another_release_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "shop")
    task = planned(tmp_path / "shop")
    monkeypatch.setattr(headrace, "__version__", "9.9.9")
    with pytest.raises(UnsupportedError, match=r"received: 0\.\S+ in the driver, 9\.9\.9 on .*; install the same"):
        task.open_store()


def test_a_plan_that_opened_no_store_fixes_the_release_only(tmp_path: Path) -> None:
    make_store(tmp_path / "shop")
    assert planned_for(None).store is None
    with planned_for(None).open(lambda: headrace.open(tmp_path / "shop")) as store:
        assert pickle.loads(pickle.dumps(planned_for(store))) == StoreIdentity(headrace.__version__, store.id)
