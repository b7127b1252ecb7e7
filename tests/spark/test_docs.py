"""The code in the documents runs, and prints the output that they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from tests.conformance import serving
from tests.documents import ROOT, blocks, claimed, code_of, run_code, run_shell

HERE = "tests/spark/test_docs.py"


def commands_of(document: str) -> list[str]:
    """Return the lines of a document's shell blocks that this file runs."""
    return [line for block in claimed(document, HERE) if block.language == "sh" for line in block.text.splitlines()]


def test_the_stream_of_the_readme_runs_as_shown(tmp_path: Path) -> None:
    script = "\n".join(blocks("README.md", "python"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown = "".join(blocks("README.md", "text")).splitlines()
    assert [line.rstrip() for line in done.stdout.splitlines() if line.strip()] == [line.rstrip() for line in shown]


@pytest.mark.usefixtures("spark")
def test_the_page_on_queues_runs_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of("docs/queues.md", "python", tmp_path)
    code += """
print(sorted(row["user"] for row in store.queue("slow").read(0, 0).rows.to_pylist()))
print(store.consumer("//home/stats").offsets("clicks") == {n: b.upper for n, b in clicks.bounds().items()})
"""
    # The consumer was advanced over the first click before the stream started.
    assert run_code(code, capsys)[-2:] == ["['u1', 'u2']", "True"]


def test_the_page_on_workers_runs_as_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_code(code_of("docs/workers.md", "python", tmp_path), capsys)
    assert printed == ["o1 insert 10.0", "o2 insert 2.5", "1 more from stream-1", "True"]


def test_the_page_on_tablestore_runs_as_shown(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_ID", serving.KEY_ID)
    monkeypatch.setenv("HEADRACE_ACCESS_KEY_SECRET", serving.KEY_SECRET)
    code = code_of("docs/tablestore.md", "python", tmp_path)
    endpoint = serving.tablestore_endpoint()
    printed = run_code(code.replace("http://127.0.0.1:8484", endpoint), capsys)
    changes = ["o1 insert 10.0", "o2 insert 2.5", "o2 update_postimage 3.0"]
    assert printed == [*changes, "[{'id': 'o1', 'price': 10.0}]"]
    streams = headrace.sql(spark, tmp_path)
    (definition,) = blocks("docs/tablestore.md", "sql")
    streams.run(definition.replace("http://127.0.0.1:8484", endpoint))
    assert streams.run("SELECT id, price FROM orders ORDER BY id")[0].fetch() == [("o1", 10.0), ("o2", 3.0)]
    streams.stop()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> str:
    """An endpoint of YTsaurus. The environment names it before the Spark session starts."""
    endpoint = serving.ytsaurus_endpoint()
    monkeypatch.setenv("YT_TOKEN", serving.TOKEN)
    monkeypatch.setenv("YT_PROXY", endpoint)
    return endpoint


def test_the_page_on_ytsaurus_runs_as_shown(
    cluster: str, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = code_of("docs/ytsaurus.md", "python", tmp_path).replace("http://127.0.0.1:8585", cluster)
    read, written, offsets = run_code(code, capsys)[-3:]
    assert read == "[{'data': 'one'}, {'data': 'three'}]"
    assert written == "[{'data': 'one', 'data_length': 3}, {'data': 'three', 'data_length': 5}]"
    assert offsets == "{0: 2, 1: 0}"
    streams = headrace.sql(spark, tmp_path)
    job = "\n".join(blocks("docs/ytsaurus.md", "sql")).replace("http://127.0.0.1:8585", cluster)
    results = [result.rows for result in streams.run(job, available_now=True)]
    assert "exactly once" in str(results)
    assert streams.wait(120)
    streams.stop()
    looked = run_shell("\n".join(commands_of("docs/ytsaurus.md")).replace("http://127.0.0.1:8585", cluster), tmp_path)
    assert "three" in looked
    assert "long_lines" in looked
    with headrace.open(f"yt+{cluster}", token=serving.TOKEN) as store:
        assert store.queue("//tmp/sample/long_lines").read(0, 0).rows["data"].to_pylist() == ["three"]


@pytest.mark.usefixtures("spark")
def test_the_page_on_checkpoints_runs_as_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_of("docs/checkpoints.md", "python", tmp_path)
    code += 'print(sorted((row["user"], row["ms"]) for row in store.table("totals").scan().read_all().to_pylist()))\n'
    # The page sets it.
    monkeypatch.setenv("HEADRACE_STORE", "")
    monkeypatch.delenv("YT_PROXY", raising=False)
    listed, copied, named, bare, sums = run_code(code, capsys)[-5:]
    assert listed == "['commits', 'metadata', 'offsets', 'state']"
    assert (named, bare) == ("['commits', 'metadata', 'offsets', 'state', 'stream.json']", "True")
    assert (copied, sums) == ("3", "[('u1', 15), ('u2', 7)]")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "document", ["docs/tutorial.md", "docs/following-tables.md", "docs/several-tables.md", "docs/changes.md"]
)
def test_the_code_of_a_page_prints_the_output_that_the_page_shows(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = "".join(blocks(document, "text")).splitlines()
    printed = run_code(code_of(document, "python", tmp_path), capsys)
    if document == "docs/tutorial.md":
        # The commands come last.
        looked = [line.rstrip() for line in run_shell("\n".join(commands_of(document)), tmp_path).splitlines()]
        table = shown.index(" user   orders   spent")
        assert printed == shown[:table]
        at = looked.index(" user   orders   spent")
        assert looked[at : at + 4] == shown[table:]
        assert "largest_order" in "\n".join(looked)
    else:
        assert printed == shown


def test_the_page_of_options_matches_the_code() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "options_page.py"), "--check"], check=True)


def test_the_page_of_versions_matches_the_code() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "spark_versions_page.py"), "--check"], check=True)


def test_the_table_of_the_readme_has_the_last_results() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "version_matrix.py"), "check"], check=True)
