"""Test versions of Spark, Python and PostgreSQL together, and write the table of README.md from the results.

``python tools/version_matrix.py run`` makes an environment in ``build/matrix`` for each combination for which uv finds
an interpreter, and runs `SLICE` there. ``--spark 4.1 --python 3.12 --postgres 15`` choose versions. ``--interpreter
PATH`` names more interpreters. Each result replaces the older one in ``tools/versions.json``. The exit code is 1 if a
combination failed, or if a chosen version of Python has no interpreter. ``write`` only writes the table, and ``check``
compares it. ``lowest`` tests the lowest versions of the dependencies.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).with_name("versions.json")
README = ROOT / "README.md"
BEGIN, END = "<!-- made by tools/version_matrix.py -->\n", "<!-- end -->\n"

SPARKS = ("4.3", "4.2", "4.1", "4.0")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
POSTGRES = ("18", "17", "16", "15", "14")
SLICE = (
    # Feeds and sinks.
    "src/headrace/testing/suite/test_feed.py",
    "src/headrace/testing/suite/test_replay.py",
    "src/headrace/testing/suite/test_publication.py",
    "src/headrace/testing/suite/test_queue_publication.py",
    "tests/unit/test_spark_versions.py",
    # A tunnel or a queue into a table.
    "tests/spark/test_versions.py",
    "tests/spark/test_tunnel_source.py",
    "tests/spark/test_sinks.py",
    # Queries that follow tables, and MERGE.
    "tests/spark/test_following.py::test_groups_follow_inserts_updates_and_deletes",
    "tests/spark/test_following.py::test_joins_windows_unions_and_aggregates_are_followed",
    "tests/spark/test_gathered_queries.py::test_tables_of_two_stores_are_joined_into_a_third",
    "tests/spark/test_merge_streams.py::test_merge_in_python_moves_rows_whose_key_changes",
    # Kills at failpoints.
    "tests/spark/test_failpoints.py",
    "tests/spark/test_connect.py",
)
POSTGRES_SLICE = (
    "tests/interop/test_postgres_versions.py",
    "src/headrace/testing/suite/test_feed.py",
    "src/headrace/testing/suite/test_replay.py",
    "src/headrace/testing/suite/test_publication.py",
)
# All but "pipelines", which needs Spark 4.3.
EXTRAS = "connect,delta,iceberg,mcp,metrics,otel,pandas,plot,postgres,prompt,query,serve,spark,tablestore,testing,ui,yt"
_SECONDS = 3600
_COUNTS = re.compile(r"(\d+) (passed|failed|error|skipped)")

Results = dict[str, dict[str, dict[str, Any]]]
"""The results by version of Spark and of Python; those of PostgreSQL, in any Python, by "postgres" and its version."""


def test_spark(spark: str, python: str, interpreter: str) -> dict[str, Any]:
    """Run the slice with versions of Spark and Python, in an environment that is made at the first time."""
    program = _environment(f"spark-{spark}-python-{python}", interpreter, f"pyspark[connect]=={spark}.*")
    release = _output(program, "-c", "import pyspark, platform; print(pyspark.__version__, platform.python_version())")
    of_spark, of_python = release.split()
    words = "not postgres and not ytsaurus and not tablestore"
    return {"spark": of_spark, "python": of_python} | _tested(program, [*SLICE, "-k", words], {})


def test_lowest(interpreter: str) -> dict[str, Any]:
    """Run unit and conformance tests with the lowest versions of the dependencies that pyproject.toml allows."""
    bounds, lowest = (ROOT / "build" / "matrix" / name for name in ("bounds.txt", "lowest.txt"))
    bounds.parent.mkdir(parents=True, exist_ok=True)
    bounds.write_text("".join(f"{bound}\n" for bound in _lower_bounds()))
    extras = [f"--extra={extra}" for extra in EXTRAS.split(",")]
    resolve = ["uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", "--resolution=lowest-direct"]
    found = _output(*resolve, f"--python={interpreter}", *extras, f"--constraints={bounds}", ROOT / "pyproject.toml")
    # Indirect dependencies are free: the newest of them need not fit the tools of the tests.
    direct = {canonicalize_name(Requirement(bound).name) for bound in _lower_bounds()}
    lowest.write_text("".join(f"{line}\n" for line in found.splitlines() if line.partition("==")[0] in direct))
    program = _environment("lowest", interpreter, f"--constraints={lowest}")
    return _tested(program, ["tests/unit", "tests/conformance", "src/headrace/testing/suite"], {})


def _lower_bounds() -> list[str]:
    """Return requirements that only the lowest release of each dependency fits.

    Without them, uv takes newer ones where the newest version of an indirect dependency wants those.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(text for extra in EXTRAS.split(",") for text in extras[extra])]
    return [
        f"{requirement.name}=={each.version}.*"
        for requirement in map(Requirement, texts)
        for each in requirement.specifier
        if each.operator == ">="
    ]


def _environment(name: str, interpreter: str, *requirements: str) -> Path:
    """Return the Python of an environment for tests."""
    directory = ROOT / "build" / "matrix" / name
    environment = {**os.environ, "VIRTUAL_ENV": str(directory)}
    if not (directory / "bin" / "python").exists():
        subprocess.run(["uv", "venv", "--quiet", "--python", interpreter, directory], check=True)
    install = ["uv", "pip", "install", "--quiet"]
    project = ROOT / "pyproject.toml"
    editable = ["--editable", f"{ROOT}[{EXTRAS}]", f"--group={project}:dev"]
    subprocess.run([*install, *editable, *requirements], env=environment, check=True)
    subprocess.run([*install, "--no-deps", f"--group={project}:sdk"], env=environment, check=True)
    return directory / "bin" / "python"


def test_postgres(version: str) -> dict[str, Any]:
    """Run the slice of PostgreSQL with a version, which is fetched; the newest comes with the tests' dependencies."""
    chosen = {}
    if version != POSTGRES[0]:
        fetch = (sys.executable, ROOT / "tools" / "postgres_programs.py", version)
        chosen = {"HEADRACE_POSTGRES_BIN": _output(*fetch).splitlines()[-1]}
    return _tested(Path(sys.executable), [*POSTGRES_SLICE, "-k", "postgres"], chosen)


def _tested(program: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a run of pytest."""
    begin = time.monotonic()
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command: list[str | Path] = [program, "-m", "pytest", *options, *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=_SECONDS)
    lines = done.stdout.strip().splitlines()
    _say(*(line for line in lines if line.startswith(("FAILED", "ERROR"))))
    counts = {name: int(number) for number, name in _COUNTS.findall(lines[-1] if lines else "")}
    ended = {"passed": done.returncode == 0, "tests": counts.get("passed", 0), "skipped": counts.get("skipped", 0)}
    return ended | {"seconds": round(time.monotonic() - begin), "date": datetime.date.today().isoformat()}


def interpreter_of(python: str, others: Sequence[str]) -> str | None:
    """Return an interpreter of a version: one of the others, or one that uv finds; None if there is none."""
    for path in others:
        if _output(path, "-c", "import sys; print(*sys.version_info[:2], sep='.')") == python:
            return path
    search = ["uv", "python", "find", "--no-project", "--no-python-downloads", python]
    return subprocess.run(search, capture_output=True, text=True, check=False).stdout.strip() or None


def _output(*command: str | Path) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def table(results: Results) -> str:
    """Return the table of README.md."""
    heads = [f"Python {python}" for python in PYTHONS]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for spark in SPARKS:
        cells = [_cell(results.get(spark, {}).get(python)) for python in PYTHONS]
        lines.append(f"| Spark {spark} | {' | '.join(cells)} |")
    servers = [f"{version} ({_cell(results.get('postgres', {}).get(version))})" for version in reversed(POSTGRES)]
    return "\n".join([*lines, "", f"PostgreSQL: {', '.join(servers)}.", ""])


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "not tested"
    return str(result["date"]) if result["passed"] else f"failed {result['date']}"


def readme(results: Results) -> str:
    """Return the text of README.md with the table."""
    before, _, rest = README.read_text().partition(BEGIN)
    return before + BEGIN + table(results) + END + rest.partition(END)[2]


def run(arguments: argparse.Namespace) -> bool:
    """Run the chosen combinations, and save each result when it is there. Return whether all passed."""
    chosen = [("postgres", version) for version in arguments.postgres]
    pythons = PYTHONS if arguments.python is None else arguments.python
    for spark in arguments.spark:
        chosen += [(spark, python) for python in pythons]
    passed = True
    for kind, version in chosen:
        try:
            if kind == "postgres":
                result = test_postgres(version)
            elif found := interpreter_of(version, arguments.interpreter):
                result = test_spark(kind, version, found)
            else:
                _say(f"{kind} {version}: no interpreter")
                passed &= arguments.python is None
                continue
        except subprocess.SubprocessError as error:
            # No environment, no programs, or no end.
            result = {"passed": False, "date": datetime.date.today().isoformat()}
            _say(str(error))
        passed &= result["passed"]
        _say(f"{kind} {version}: {result}")
        results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results.setdefault(kind, {})[version] = result
        RESULTS.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("run", "lowest", "write", "check"))
    parser.add_argument("--spark", nargs="*", choices=SPARKS, default=SPARKS)
    parser.add_argument("--python", nargs="*", choices=PYTHONS)
    parser.add_argument("--postgres", nargs="*", choices=POSTGRES, default=POSTGRES)
    parser.add_argument("--interpreter", nargs="*", default=[], metavar="PATH")
    arguments = parser.parse_args()
    passed = run(arguments) if arguments.action == "run" else True
    if arguments.action == "lowest":
        result = test_lowest(interpreter_of(PYTHONS[0], arguments.interpreter) or sys.executable)
        _say(f"lowest versions: {result}")
        sys.exit(not result["passed"])
    text = readme(json.loads(RESULTS.read_text()))
    if arguments.action == "check":
        sys.exit(0 if README.read_text() == text else "README.md is out of date: run tools/version_matrix.py write")
    README.write_text(text)
    _say(table(json.loads(RESULTS.read_text())))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
