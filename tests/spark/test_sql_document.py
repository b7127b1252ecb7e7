"""The statements of the page on streaming SQL run as written, in order, over the table of the README."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import OptionError
from headrace.streaming_sql.session import StreamingSql
from tests.documents import claimed, run_code, run_shell

BLOCKS = claimed("docs/sql.md", "tests/spark/test_sql_document.py")
# The innermost optional part of a statement's form.
_OPTIONAL = re.compile(r" ?\[([^][]*)\]")
# Names in a form that stand for several words, or for a name that only the reader has.
_PLACEHOLDER = re.compile(r"…|\(columns\)|\(column type|\bON table\b|\bprovider\b|\bquery\b|\bINTO target\b| \| ")
# The excerpts assume other tunnels, and tables for their results.
_ASSUMED = {
    "CREATE SCAN orders_now": """
        CREATE TUNNEL totals ON orders;
        CREATE TABLE totals_per_user (UserId STRING, orders BIGINT, spent DOUBLE, PRIMARY KEY (UserId)) USING headrace
        OPTIONS (store = "shop");
        """,
    "CREATE STREAM copy_orders": """
        CREATE TUNNEL copies ON orders;
        CREATE OR REPLACE SCAN order_changes ON orders USING STREAM OPTIONS (tunnel = "copies");
        CREATE TABLE orders_copy (UserId STRING, OrderId STRING, price DOUBLE, timestamp BIGINT,
        PRIMARY KEY (UserId, OrderId)) USING headrace OPTIONS (store = "shop");
        """,
    "CREATE STREAM copy ": """
        DROP STREAM copy_orders;
        DROP TABLE orders_copy;
        CREATE TABLE orders_copy USING headrace OPTIONS (store = "shop", table = "mirrored");
        CREATE TABLE orders_past USING headrace OPTIONS (store = "shop", table = "orders_past");
        CREATE STREAM past OPTIONS (checkpointLocation = "checkpoints/past")
        MIRROR people INTO orders_past WITH HISTORY;
        """,
}
# The statement to which the page's clauses for keys that change belong.
_CLAUSES = """
EXPLAIN CREATE STREAM named OPTIONS (checkpointLocation = "checkpoints/named")
MERGE INTO names AS t USING people_changes AS s ON t.user = s.user
"""


def statements_of(block: str) -> list[str]:
    """Return the statements of a block. Of a form, optional parts are chosen, with the first of their alternatives."""
    found = []
    for statement in re.sub(r"--[^\n]*", "", block).split(";"):
        whole = statement.strip()
        while (chosen := _OPTIONAL.sub(_first, whole)) != whole:
            whole = chosen
        if whole and not _PLACEHOLDER.search(whole):
            found.append(whole)
    return found


def _first(optional: re.Match[str]) -> str:
    part = f" {optional[1].partition(' | ')[0]}"
    return "" if _PLACEHOLDER.search(part) else part


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[StreamingSql]:
    """A session of streaming SQL, with the table of the README, and with one whose keys change."""
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        columns = {"UserId": "string", "OrderId": "string", "price": "double", "timestamp": "long"}
        orders = store.create_table("OrderSource", columns, ["UserId", "OrderId"], pre_images=True)
        orders.put([{"UserId": "u1", "OrderId": "o1", "price": 10.0, "timestamp": 1574866440000}])
        store.create_table("people", {"id": "long", "user": "string"}, "id", pre_images=True).put(
            {"id": 1, "user": "ada"}
        )
        store.create_table("names", {"user": "string", "id": "long"}, "user")
        for name in ("items", "customers"):
            store.create_table(name, {"id": "long", "name": "string"}, "id")
        store.create_tunnel("people", "names")
    started = headrace.sql(spark, tmp_path / "workspace")
    yield started
    started.stop()


def test_the_statements_run_as_written(streams: StreamingSql, tmp_path: Path) -> None:
    def here(text: str) -> str:
        """Return a text with places in the directory of the test."""
        return re.sub(r"""(["' =])(?:/data/)?(shop|checkpoints|archive|events)(?=["'/])""", rf"\1{tmp_path}/\2", text)

    streams.run(
        here("""
        CREATE TABLE people USING headrace OPTIONS (store = "shop", table = "people");
        CREATE TABLE names USING headrace OPTIONS (store = "shop", table = "names");
        CREATE TABLE items USING headrace OPTIONS (store = "shop", table = "items");
        CREATE TABLE customers USING headrace OPTIONS (store = "shop", table = "customers");
        CREATE SCAN people_changes ON people USING STREAM OPTIONS (tunnel = "names");
        """)
    )
    printed: dict[str, object] = {}
    drops: list[str] = []
    for block in [block.text for block in BLOCKS if block.language == "sql"]:
        if block.startswith("WHEN"):
            streams.run(here(_CLAUSES) + block)
            continue
        for statement in statements_of(block):
            for begin, assumed in _ASSUMED.items():
                if statement.startswith(begin):
                    streams.run(here(assumed), available_now=True)
                    assert streams.wait(120)
            if statement.startswith("DROP"):
                # Statements below it use the name.
                drops.append(statement)
                continue
            if "USING kafka" in statement:
                with pytest.raises(OptionError, match="table orders_topic has an unknown provider"):
                    streams.run(statement)
                continue
            result = streams.run(here(statement), available_now=True)[0]
            printed[statement] = result.rows if result.columns else result.message
            assert streams.wait(120)
    for statement in drops:
        streams.run(statement)
    assert "exactly once" in str(printed["EXPLAIN STREAM pages"])
    with headrace.open(tmp_path / "shop") as store:
        rows = {
            name: store.table(name).scan().read_all().num_rows
            for name in ("PerMinute", "totals_per_user", "orders_copy", "mirrored", "orders_past")
        }
        # The page truncates the table.
        assert rows == {"PerMinute": 0, "totals_per_user": 1, "orders_copy": 1, "mirrored": 1, "orders_past": 1}
        assert store.queue("page_views").bounds()[0].rows == 3


@pytest.mark.usefixtures("spark")
def test_the_python_of_the_page_runs_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [block.text for block in BLOCKS if block.language == "python"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sql").write_text("SHOW STREAMS")
    names: dict[str, object] = {}
    assert run_code(code, capsys, names) == []
    assert isinstance(names["results"], list)


def test_the_shells_get_their_completion(tmp_path: Path) -> None:
    (block,) = [block.text for block in BLOCKS if block.language == "sh"]
    lines = block.splitlines()
    run_shell(lines[0], tmp_path)
    for line in lines:
        (command,) = re.findall(r"_HEADRACE_COMPLETE=\w+ headrace", line)
        assert "_HEADRACE_COMPLETE" in run_shell(command, tmp_path, {"SHELL": os.environ.get("SHELL", "bash")})
