"""The Java that Spark needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.model.findings import Finding, Status

OLDEST_JAVA = 17
_SECONDS = 60


def check_java() -> Finding:
    """Check for Java 17 or newer, in JAVA_HOME or else on the PATH."""
    install = "install Java 17 or newer (Debian, Ubuntu: apt install openjdk-17-jre-headless) or point JAVA_HOME to it"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        return Finding("Java", Status.FAIL, "no java on the PATH, JAVA_HOME is not set", install)
    source = "JAVA_HOME" if home else "PATH"
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Java", Status.FAIL, f"{program} ({source}) does not run: {error}", install)
    version = java_version(answer.stderr + answer.stdout)
    if version is None:
        return Finding("Java", Status.FAIL, f"{program} ({source}) does not print its version", install)
    if version < OLDEST_JAVA:
        return Finding("Java", Status.FAIL, f"Java {version} at {program} ({source})", install)
    return Finding("Java", Status.OK, f"Java {version} at {program} ({source})")


def java_version(text: str) -> int | None:
    """Return the main version number in the output of ``java -version``. (Java 8 prints 1.8.)"""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None
