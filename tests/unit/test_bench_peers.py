"""What the benches beside peers say when something is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.peers.releases import java

from headrace.errors import MissingDependencyError


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"no java in JAVA_HOME or on the PATH.*openjdk-17-jdk-headless"):
        java()


def test_a_java_without_the_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho java.base@17\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java() == str(program)
    with pytest.raises(MissingDependencyError, match=r"bin/java without module jdk\.compiler"):
        java("jdk.compiler")
