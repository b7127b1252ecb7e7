"""The commands in the documents, as a shell runs them, with the files and tables that the documents assume."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from tests.documents import blocks, run_code, run_shell


def prepare_shop(directory: Path) -> None:
    """Make the table and the tunnel of the README."""
    with headrace.open(directory / "shop", create=True) as store:
        columns = {"UserId": "string", "OrderId": "string", "price": "double", "timestamp": "long"}
        orders = store.create_table("OrderSource", columns, ["UserId", "OrderId"], pre_images=True)
        store.create_tunnel("OrderSource", "stats")
        orders.put([{"UserId": "u1", "OrderId": "o1", "price": 10.0, "timestamp": 1}])


def prepare_two_tables(directory: Path) -> None:
    with headrace.open(directory / "shop", create=True) as store:
        for name in ("orders", "copy"):
            columns = {"id": "long", "price": "double", "status": "string"}
            store.create_table(name, columns, "id").put([{"id": 1, "price": 2.5, "status": "new"}])


def prepare_files(directory: Path) -> None:
    (directory / "flights-1.csv.gz").write_bytes(gzip.compress(b"id,carrier,delay\n7,AA,90\n8,UA,5\n"))
    (directory / "clicks.jsonl.gz").write_bytes(gzip.compress(b'{"user": "u1", "ms": 3}\n'))
    pq.write_table(pa.table({"user": ["u1", "u2"], "ms": [1, 2]}), directory / "events.parquet")
    with headrace.open(directory / "shop", create=True) as store:
        store.create_table("users", {"user": "string", "name": "string"}, "user").put([{"user": "u1", "name": "Ann"}])


def all_commands_of(document: str, *left_out: str) -> str:
    """Return the shell blocks of a document, without the lines that contain one of some texts."""
    lines = "".join([*blocks(document, "sh"), *blocks(document, "bash")]).splitlines()
    return "\n".join(line for line in lines if not any(text in line for text in left_out))


@pytest.mark.parametrize(
    ("document", "prepare", "left_out", "shown"),
    [
        ("docs/embedded-store.md", prepare_shop, (), "u1"),
        ("docs/workers.md", prepare_two_tables, ("postgresql://",), "Changes of orders copied into orders_past: 1."),
        ("docs/load-and-query.md", prepare_files, (), '7,"AA",90'),
        (
            "docs/operations.md",
            prepare_two_tables,
            # Spark, servers, and the first of two stores.
            ("--spark", "postgresql://", "yt://", "headrace run"),
            "The tables are equal.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("docs") else "",
)
def test_the_commands_of_a_page_run(
    document: str, prepare: Callable[[Path], None], left_out: tuple[str, ...], shown: str, tmp_path: Path
) -> None:
    prepare(tmp_path)
    assert shown in run_shell(all_commands_of(document, *left_out), tmp_path)


def test_the_commands_on_queues_run(tmp_path: Path) -> None:
    headrace.open(tmp_path / "shop", create=True).close()
    printed = run_shell(all_commands_of("docs/queues.md").replace(" --watch", ""), tmp_path)
    assert "u1" in printed


def test_the_code_on_backups_queries_and_histories_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = run_code("\n".join(["import headrace", *blocks("docs/embedded-store.md", "python")[:-1]]), capsys)
    assert printed == []
    assert (tmp_path / "shop-of-monday").is_dir()
    assert run_code("".join(blocks("docs/load-and-query.md", "python")), capsys) == ["[{'n': 1, 'total': 3.5}] False"]
    assert run_code("".join(blocks("docs/operations.md", "python")), capsys) == []
