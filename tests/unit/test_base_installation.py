"""headrace without pyspark and pandas: what works, and the one error of what does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from headrace.cli.installed import PURPOSES
from tests.unit.base_installation import NAMES

ROOT = Path(__file__).parents[2]
SPARK, PANDAS = "pip install 'headrace[spark]'", "pip install 'headrace[pandas]'"
DOORS = {
    *NAMES, "format headrace", "format tablestore", "format yt",
    "run job.sql", "sql -e 'CREATE TEMPORARY VIEW v AS SELECT 1;'", "demo", "doctor --spark",
}  # fmt: skip


def project() -> dict[str, object]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def test_only_spark_needs_pyspark_and_only_data_frames_need_pandas(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.base_installation", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout) == dict.fromkeys(DOORS, SPARK) | {"to_pandas": PANDAS}


def test_the_base_has_neither_pyspark_nor_pandas() -> None:
    names = {re.split(r"[^\w-]", str(each))[0] for each in project()["dependencies"]}  # type: ignore[attr-defined]
    assert names == {"apsw", "click", "httptools", "numpy", "packaging", "pyarrow", "rich", "uvicorn"}


def test_doctor_says_what_each_extra_is_for() -> None:
    assert PURPOSES.keys() == {*project()["optional-dependencies"]}  # type: ignore[misc]


def test_the_page_of_the_installation_has_each_extra() -> None:
    rows = [row for row in (ROOT / "docs" / "installation.md").read_text().splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in rows))) == PURPOSES.keys()
