"""The machine of a run: the processors that all processes of a benchmark share, and the versions of both sides."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import apsw
import pyarrow as pa
import pyspark
from tests.postgres_server import PROGRAMS

import headrace

_CHECKOUT = Path(__file__).parents[1]
_PROCESSORS = 2


def use_two_processors() -> None:
    """Bind this process to two processors, and so all that it starts: servers and peers have no more than Spark has.

    Systems without such a call, for example macOS, use all processors.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_PROCESSORS])


def machine() -> str:
    """Return the processors and versions of this run as one line."""
    used = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    facts = {
        "headrace": f"{headrace.__version__} ({_output('git', '-C', _CHECKOUT, 'describe', '--always', '--dirty')})",
        "Python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pa.__version__,
        "SQLite": apsw.sqlite_lib_version(),
        "Java": _version(_output(java, "-version")),
        "PostgreSQL": _version(_output(PROGRAMS / "postgres", "--version")),
    }
    versions = ", ".join(f"{what} {version}" for what, version in facts.items())
    return f"{used} of {os.cpu_count()} cores, {platform.machine()}, {versions}"


def _output(program: str | Path, *arguments: str | Path) -> str:
    if shutil.which(program) is None:
        return "none"
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()


def _version(text: str) -> str:
    found = re.search(r"\d+(\.\d+)*", text)
    return found[0] if found else "none"
