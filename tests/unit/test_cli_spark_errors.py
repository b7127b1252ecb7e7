"""Which lines and errors of Spark's processes reach the terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

import pytest

from headrace.cli import run
from headrace.cli.app import App
from headrace.cli.spark_errors import SparkErrors, filtered

DAEMON = """Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 215, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/runpy.py", line 88, in _run_code
    exec(code, run_globals)
BrokenPipeError: [Errno 32] Broken pipe

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 89, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
JAVA = """WARNING: Using incubator modules: jdk.incubator.vector
WARNING: A restricted method in java.lang.System has been called
WARNING: sun.misc.Unsafe::arrayBaseOffset will be removed in a future release
"""
USER = """Traceback (most recent call last):
  File "/home/me/job.py", line 3, in price
    write(b"x")
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 9, in main
    process()
BrokenPipeError: [Errno 32] Broken pipe
"""
OTHER = USER.replace("/home/me/job.py", "/venv/lib/python3.11/site-packages/pyspark/daemon.py").replace(
    "BrokenPipeError: [Errno 32] Broken pipe", "ValueError: no"
)
PRINTED = "26/11/25 10:00:00 ERROR Something: a message\nprinted by a function\n\n  indented\n"


def shown(text: str) -> str:
    errors = SparkErrors()
    lines = [line for each in text.splitlines() for line in errors.shown(each)]
    return "".join(f"{line}\n" for line in lines + errors.rest())


@pytest.mark.parametrize("text", [DAEMON, JAVA, JAVA + DAEMON, DAEMON + DAEMON])
def test_lines_of_sparks_own_are_dropped(text: str) -> None:
    assert shown(text) == ""
    assert shown(f"before\n{text}after\n") == "before\nafter\n"


@pytest.mark.parametrize("text", [USER, OTHER, PRINTED, USER + PRINTED])
def test_lines_for_the_user_stay(text: str) -> None:
    assert shown(text) == text
    assert shown(JAVA + text + DAEMON) == text


def test_the_standard_error_of_a_process_is_filtered_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    script = f"import sys; sys.stderr.write({JAVA + PRINTED + DAEMON!r})"
    gateway: Any = import_module("pyspark.java_gateway")
    with filtered():
        process = gateway.Popen([sys.executable, "-c", script])
    assert process.wait(60) == 0
    for thread in threading.enumerate():
        if thread.name == "spark-stderr":
            thread.join(60)
    assert output.getvalue() == PRINTED


@pytest.mark.parametrize("asked", [True, False])
def test_errors_of_spark_after_the_end_was_requested_are_warnings(
    asked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # A service manager sends SIGTERM to the processes of Spark, too.
    level, handler = logging.getLogger("py4j").level, signal.signal(signal.SIGTERM, run._end_requested)
    try:
        with contextlib.nullcontext() if asked else pytest.raises(ConnectionError), run.until_end_requested(App()):
            try:
                if asked:
                    os.kill(os.getpid(), signal.SIGTERM)
            finally:
                raise ConnectionError("Spark has ended\nat java.lang.Thread")
    finally:
        signal.signal(signal.SIGTERM, handler)
        logging.getLogger("py4j").setLevel(level)
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.endswith("they continue at the next start: Spark has ended" if asked else "")


def test_nothing_is_shown_when_python_ends() -> None:
    program = """
import atexit, threading

def write():
    ending.wait()
    spark_errors._show(["late"])

def end():
    ending.set()
    writer.join(1)

atexit.register(end)
from headrace.cli import spark_errors
ending, writer = threading.Event(), threading.Thread(target=write, daemon=True)
writer.start()
spark_errors._show(["early"])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "early\n")
