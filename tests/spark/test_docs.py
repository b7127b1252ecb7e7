"""What the documents show is run as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from tests.conformance import serving

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """Return the code blocks of a language in a document."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_the_quick_start_of_the_readme(tmp_path: Path) -> None:
    script = "\n".join(blocks("README.md", "python"))
    for number, block in enumerate(blocks("README.md", "sql")):
        (tmp_path / f"{number}.sql").write_text(block)
        script += f"""
streams = headrace.sql(spark)
streams.run(open("{number}.sql").read(), available_now=True)
streams.wait()
totals = headrace.open("shop").table("Totals").scan().read_all().to_pylist()
print([(row["UserId"], row["orders"], row["spent"]) for row in totals])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # The table after the Python half, and after the same in SQL.
    assert re.search(r"u1\s+2\s+12\.5", done.stdout)
    assert done.stdout.strip().endswith("[('u1', 2, 12.5), ('u2', 1, 5.0)]")


def test_the_page_on_queues(tmp_path: Path) -> None:
    script = "\n".join(blocks("docs/queues.md", "python"))
    script += """
print(sorted(row["user"] for row in store.queue("slow").read(0, 0).rows.to_pylist()))
print(store.consumer("//home/stats").offsets("clicks") == {n: b.upper for n, b in clicks.bounds().items()})
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # The first click was read by hand before the stream began.
    assert done.stdout.strip().endswith("['u1', 'u2']\nTrue")


def test_the_page_on_workers(tmp_path: Path) -> None:
    script = "\n".join(blocks("docs/workers.md", "python"))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["o1 insert 10.0", "o2 insert 2.5", "1 more from stream-1"]


def test_the_page_on_tablestore(tmp_path: Path) -> None:
    script = "\n".join(blocks("docs/tablestore.md", "python"))
    environment = {
        **os.environ,
        "HEADRACE_ACCESS_KEY_ID": serving.KEY_ID,
        "HEADRACE_ACCESS_KEY_SECRET": serving.KEY_SECRET,
    }
    try:
        script = script.replace("http://127.0.0.1:8484", serving.tablestore_endpoint())
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        serving.stop()
    assert done.returncode == 0, done.stderr[-4000:]
    changes = ["o1 insert 10.0", "o2 insert 2.5", "o2 update_postimage 3.0"]
    assert done.stdout.splitlines() == [*changes, "[{'id': 'o1', 'price': 10.0}]"]


def test_the_page_on_ytsaurus(tmp_path: Path) -> None:
    endpoint = serving.ytsaurus_endpoint()
    script, job = ("\n".join(blocks("docs/ytsaurus.md", kind)) for kind in ("python", "sql"))
    (tmp_path / "job.sql").write_text(job.replace("http://127.0.0.1:8585", endpoint))

    def run(*command: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command],
            cwd=tmp_path,
            env={**os.environ, "YT_TOKEN": serving.TOKEN, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    try:
        read, written, offsets = run("-c", script.replace("http://127.0.0.1:8585", endpoint)).splitlines()[-3:]
        assert read == "[{'data': 'one'}, {'data': 'three'}]"
        assert written == "[{'data': 'one', 'data_length': 3}, {'data': 'three', 'data_length': 5}]"
        assert offsets == "{0: 2, 1: 0}"
        told = run("-m", "headrace.cli.main", "run", "job.sql", "--available-now", YT_PROXY=endpoint)
        assert "exactly once" in told
        with headrace.open(f"yt+{endpoint}", token=serving.TOKEN) as store:
            assert store.queue("//tmp/sample/long_lines").read(0, 0).rows["data"].to_pylist() == ["three"]
    finally:
        serving.stop()


def test_the_page_of_options_is_made_from_the_code() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "options_page.py"), "--check"], check=True)


@pytest.mark.parametrize("document", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_links_between_documents_lead_somewhere(document: str) -> None:
    page = ROOT / "docs" / document
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
