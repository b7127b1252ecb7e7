"""The demonstration: the statistics are right after the kill of the driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from headrace import sql
from tests.conformance import serving


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in another process, because it starts and stops Spark."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(900)
def test_the_demo_with_its_tables_in_postgresql_proves_its_result_and_leaves_nothing(tmp_path: Path) -> None:
    url = serving.postgres_database()
    ended = headrace("demo", "--json", "--seconds", "1", "--store", url)
    assert ended.returncode == 0, ended.stderr
    proof = json.loads(ended.stdout.splitlines()[-1])
    assert proof["proven"]
    assert proof["clean_stop"]
    assert proof["windows"] > 0
    assert proof["users"] == 3
    assert proof["orders"] > 1000
    assert proof["events"] > 1000
    assert proof["deletions"] > 0
    assert proof["published_batch"] == proof["batches_before_kill"] + proof["batches_after_kill"] - 1
    with psycopg.connect(url) as server:
        for left in (
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()",
            "SELECT pubname FROM pg_publication",
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> '__headrace_followed__'",
            "SELECT id FROM headrace.tunnel",
            "SELECT id FROM headrace.stage",
        ):
            assert server.execute(left).fetchall() == [], left


@pytest.mark.timeout(900)
def test_the_demo_proves_its_result_after_the_kill(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "demo"
    ended = headrace("demo", "--json", "--seconds", "1", "--dir", str(place))
    assert ended.returncode == 0, ended.stderr
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps.index("driver-killed") < steps.index("driver-restarted") < steps.index("writers-stopped")
    proof = events[-1]
    assert proof["event"] == "proof"
    assert proof["proven"]
    assert proof["clean_stop"]
    assert proof["differences"] == []
    assert proof["orphaned_stages"] == 0
    assert proof["windows"] > 0
    assert proof["totals_differences"] == []
    assert proof["users"] == 3
    assert proof["orders"] > 1000
    assert proof["events"] > 1000
    assert proof["deletions"] > 0
    assert proof["batches_before_kill"] >= 3
    assert proof["batches_after_kill"] >= 3
    assert proof["published_batch"] == proof["batches_before_kill"] + proof["batches_after_kill"] - 1
    lags = [event["lag"] for event in events if event["event"] == "progress"]
    assert max(lag or 0 for lag in lags) > 0
    assert lags[-1] == 0

    # The workspace stays usable: the streams continue from their checkpoints, and end without new rows.
    streams = sql(spark, workspace=place)
    streams.run((place / "job.sql").read_text(), available_now=True)
    assert streams.wait(300)
    listed = headrace("stream", "list", "--workspace", str(place), "--json")
    states = [(stream["name"], stream["state"], stream["lag"]) for stream in json.loads(listed.stdout)]
    assert states == [("job1", "finished", 0), ("totals", "finished", 0)]


def test_an_invalid_script_exits_with_1_and_a_position(tmp_path: Path) -> None:
    script = tmp_path / "job.sql"
    script.write_text("CREATE SCAN s ON t USING SOMETHING;\n")
    ended = headrace("run", str(script), "--workspace", str(tmp_path), "--master", "local[1]")
    assert ended.returncode == 1
    assert "line 1, column 26" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_statements_of_spark_print_rows_and_errors_without_traces(tmp_path: Path) -> None:
    text = "SELECT id, id * 0.5D AS half FROM range(2); SELECT nothing;"
    ended = headrace("sql", "-e", text, "--json", "--workspace", str(tmp_path), "--master", "local[1]")
    assert ended.returncode == 1
    assert json.loads(ended.stdout) == {
        "truncated": False,
        "rows": [{"id": 0, "half": 0.0}, {"id": 1, "half": 0.5}],
    }
    assert "no such column" in ended.stderr
    assert "at org.apache.spark" not in ended.stderr
    assert "Traceback" not in ended.stderr
