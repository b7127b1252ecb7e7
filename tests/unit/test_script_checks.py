"""Scripts are checked as a whole before Spark starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import main
from headrace.errors import HeadraceError
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.script_checks import check_script
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace

SCRIPT = """
CREATE TABLE orders USING headrace OPTIONS (store = 'shop', table = 'Orders');
CREATE TABLE totals (user STRING, n BIGINT, PRIMARY KEY (user)) USING headrace OPTIONS (store = 'shop');
CREATE SCAN changes ON orders USING STREAM OPTIONS (tunnel = 'stats');
CREATE STREAM s OPTIONS (outputMode = 'update') INSERT INTO totals SELECT user, count(*) AS n FROM changes GROUP BY 1;
STOP STREAM s;
"""


@pytest.fixture
def check(tmp_path: Path) -> Callable[[str], None]:
    workspace = Workspace(tmp_path)
    return lambda text: check_script(parse(text), Catalog(workspace), StreamRegistry(workspace))


def test_a_right_script_passes_and_runs_nothing(check: Callable[[str], None], tmp_path: Path) -> None:
    check(SCRIPT)
    check(SCRIPT + SCRIPT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "statement", "says"),
    [
        ("table = 'Orders'", "tabel = 'Orders'", 1, "did you mean table"),
        (
            "USING headrace OPTIONS (store = 'shop', table",
            "USING headrce OPTIONS (store = 'shop', table",
            1,
            "headrace",
        ),
        ("PRIMARY KEY (user)", "PRIMARY KEY (usr)", 2, "primary key"),
        ("user STRING, n", "user ARRAY<STRING>, n", 2, "a type that a key cannot have"),
        ("(store = 'shop');", "(store = 'shop', preImage = true);", 2, "did you mean preImages"),
        ("tunnel = 'stats'", "tunel = 'stats'", 3, "did you mean tunnel"),
        ("tunnel = 'stats'", "tunnel = 'stats', rowChange = 'put'", 3, "rowChange"),
        ("SCAN changes", "SCAN totals", 3, "a table has this name"),
        ("'update'", "'updates'", 4, "append, update, complete"),
        ("INTO totals", "INTO total", 4, "no such table in this workspace"),
        ("INTO totals", "INTO changes", 4, "can only be read"),
        ("outputMode =", "outputMod =", 4, "did you mean outputMode"),
        ("STOP STREAM s", "STOP STREAM t", 5, "no such stream"),
        ("store = 'shop', table = 'Orders'", "table = 'Orders'", 1, "store"),
    ],
)
def test_an_error_in_any_statement_is_found_first(
    check: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, old: str, new: str, statement: int, says: str
) -> None:
    monkeypatch.delenv("HEADRACE_STORE", raising=False)
    assert old in SCRIPT
    with pytest.raises(HeadraceError, match=says) as caught:
        check(SCRIPT.replace(old, new, 1))
    assert caught.value.__notes__[0].startswith(f"in statement {statement} of 5")


def test_a_definition_of_the_script_is_compared_with_that_of_the_workspace(
    check: Callable[[str], None], tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    catalog, registry = Catalog(workspace), StreamRegistry(workspace)
    catalog.add_table(TableDefinition("Orders", "headrace", {"store": "shop", "table": "Others"}))
    registry.record_start("s", script="", fingerprint="other", target="totals", checkpoint="cp")
    registry.set_running("s", "id")
    registry.set_ended("s", "failed", "no")
    with pytest.raises(HeadraceError, match="DROP TABLE orders first"):
        check(SCRIPT)
    with pytest.raises(HeadraceError, match="DROP STREAM s first"):
        check(f"DROP TABLE orders; {SCRIPT}")
    check(f"DROP TABLE orders; DROP STREAM s; {SCRIPT}")


def test_names_of_spark_are_left_to_spark(check: Callable[[str], None]) -> None:
    check("CREATE TABLE own (id BIGINT) USING parquet; CREATE SCAN s ON own USING STREAM OPTIONS (anything = 1)")
    check("CREATE TABLE t AS SELECT 1 AS id; CREATE STREAM s INSERT INTO t SELECT * FROM x")
    check("CREATE STREAM s OPTIONS (checkpointLocation = 'cp') INSERT INTO hive.t SELECT * FROM x")
    check("CREATE TABLE t USING myformat OPTIONS (a = 1)")


def test_the_command_reports_such_an_error_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr("headrace.session", start, raising=False)
    script = tmp_path / "job.sql"
    script.write_text(SCRIPT.replace("(user)", "(usr)", 1))
    assert main(["run", str(script), "-w", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "primary key" in error
    assert "in statement 2 of 5, line 3" in error
    assert "pyspark" not in sys.modules or "Spark starts" not in error
