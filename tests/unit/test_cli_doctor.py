"""The findings of `headrace doctor`, and its remedies."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import headrace
from headrace.cli import environment_checks, installed
from headrace.cli.main import main
from headrace.errors import MissingDependencyError
from headrace.model.findings import Status
from headrace.spark import connect, java
from headrace.stores.embedded.diagnosis import file_system_of


def program(path: Path, script: str) -> str:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("no version here", None),
    ],
)
def test_java_versions_are_read(text: str, version: int | None) -> None:
    assert java.java_version(text) == version


def test_an_old_java_in_java_home_fails_even_if_the_path_has_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "java", """echo 'java version "11.0.2"' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = java.check_java()
    assert (finding.status, "Java 11" in finding.found) == (Status.FAIL, True)
    assert "install Java 17" in finding.remedy


def test_a_java_home_without_java_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.check_java().status == Status.FAIL


def test_a_missing_java_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no java on the PATH" in java.check_java().found


@pytest.mark.parametrize(
    ("java_home", "found"),
    [(None, "no java on the PATH, JAVA_HOME is not set"), ("/nowhere", "JAVA_HOME) does not run")],
)
def test_without_java_no_session_starts_and_the_error_says_so(
    tmp_path: Path, java_home: str | None, found: str
) -> None:
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {} if java_home is None else {"JAVA_HOME": java_home}
    command = [sys.executable, "-m", "headrace.cli.main", "sql", "-e", "SELECT 1", "-w", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert found in ended.stderr
    assert "install Java 17" in ended.stderr


def test_workers_with_another_python_version_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = program(tmp_path / "python", """echo '["/other/python", [3, 9], []]'""")
    monkeypatch.setenv("PYSPARK_PYTHON", other)
    finding = environment_checks.check_worker_python()
    assert finding.status == Status.FAIL
    assert "Python 3.9 at /other/python" in finding.found
    assert finding.remedy == f"export PYSPARK_PYTHON={sys.executable}"


def test_workers_without_packages_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = f"[{sys.version_info[0]}, {sys.version_info[1]}]"
    bare = program(tmp_path / "python", f"""echo '["/bare/python", {version}, ["pyarrow", "headrace"]]'""")
    monkeypatch.setenv("PYSPARK_PYTHON", bare)
    finding = environment_checks.check_worker_python()
    assert finding.status == Status.FAIL
    assert "without pyarrow, headrace" in finding.found


def test_a_python_without_packages_on_the_path_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    program(tmp_path / "python3", "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment_checks.check_worker_python().status == Status.WARN


def test_the_drivers_python_is_accepted_for_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    finding = environment_checks.check_worker_python()
    assert finding.status == Status.OK, finding


def test_a_missing_driver_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/nowhere/python")
    assert environment_checks.check_driver_python().status == Status.FAIL


METADATA = {
    "headrace": ["numpy>=1.26", 'headrace[pandas]; extra == "spark"', 'spark[fast]<5,>=4; extra == "spark"',
                 'pandas>=2; extra == "pandas"'],
    "spark": ["never", 'grpc>=1; extra == "fast"', 'slow; extra == "late"'],
}  # fmt: skip


@pytest.mark.parametrize(
    ("versions", "extra", "status", "found"),
    [
        ({"spark": "4.10.1", "pandas": "2.2", "grpc": "1.9"}, "spark", Status.OK, "pandas 2.2, spark 4.10.1, grpc 1.9"),
        ({"spark": "4.0.0.dev1", "pandas": "2", "grpc": "1"}, "spark", Status.WARN, "it needs spark<5,>=4"),
        ({"spark": "5.0", "pandas": "1.9", "grpc": "1"}, "spark", Status.WARN, "it needs pandas>=2, spark<5,>=4"),
        (
            {"spark": "4.1"},
            "spark",
            Status.ABSENT,
            "for streams, streaming SQL, headrace demo; not installed: ",
        ),
        ({"pandas": "2.9"}, "pandas", Status.OK, "pandas 2.9"),
    ],
)
def test_extras_have_the_versions_of_the_metadata(
    versions: dict[str, str], extra: str, status: Status, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in installed_versions:
            raise PackageNotFoundError(name)
        return installed_versions[name]

    installed_versions = {"headrace": "0.1"} | versions

    monkeypatch.setattr(installed, "requires", METADATA.get)
    monkeypatch.setattr(installed, "version", version)
    finding = installed.check_extra(extra)
    assert (finding.name, finding.status) == (f"headrace[{extra}]", status)
    assert found in finding.found
    assert finding.remedy == ("" if status == Status.OK else f"pip install -U 'headrace[{extra}]'")
    (numpy,) = installed.check_packages()
    assert (numpy.status, numpy.found, numpy.remedy) == (
        Status.FAIL, "not installed", "pip install -U 'numpy>=1.26'",
    )  # fmt: skip


def test_a_pyspark_that_does_not_name_this_python_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its packages look at the version when they are imported.
    assert installed.check_pyspark().status == Status.OK
    monkeypatch.setattr(sys, "version_info", (3, 99, 0))
    finding = installed.check_pyspark()
    assert (finding.status, finding.found.endswith("and this is Python 3.99")) == (Status.WARN, True)
    # Older releases name older versions before it.
    assert "is for Python 3." in finding.found
    assert "3.11, " in finding.found


def test_two_packages_with_the_module_pyspark_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.check_pyspark().status == Status.OK
    monkeypatch.setattr(connect, "providers", lambda: ["pyspark", "pyspark-client"])
    finding = installed.check_pyspark()
    assert finding.status == Status.FAIL
    assert finding.remedy == "pip uninstall pyspark pyspark-client, then install one of them again"
    monkeypatch.setattr(connect, "providers", lambda: ["pyspark-client"])
    monkeypatch.setattr("pyspark.util.is_remote_only", lambda: True)
    assert "pyspark-client, only for servers of Spark Connect" in installed.check_pyspark().found
    monkeypatch.setattr("pyspark.__version__", "3.5.9")
    assert installed.check_pyspark().status == Status.FAIL


def test_a_pyspark_without_java_classes_starts_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyspark.util.is_remote_only", lambda: True)
    monkeypatch.setattr(connect, "providers", lambda: ["pyspark-client"])
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pyspark of pyspark-client.*SPARK_REMOTE.*'headrace\[spark\]'"):
        headrace.session()
    for line in (["sql", "-e", "SELECT 1"], ["demo"], ["doctor", "--spark"]):
        assert main(line) == 1
        assert "no Java classes of Spark" in "".join(capsys.readouterr())


def test_the_module_that_hides_all_data_sources_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no such library')")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = environment_checks.check_data_sources()
    assert finding.status == Status.FAIL
    assert "pyspark_broken" in finding.found
    assert "RuntimeError: no such library" in finding.found
    assert "pyspark_broken" in finding.remedy


def test_a_host_name_without_an_address_fails_unless_spark_local_ip_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(host: str) -> str:
        raise socket.gaierror("unknown")

    monkeypatch.setattr("socket.gethostbyname", unknown)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert environment_checks.check_hostname().status == Status.FAIL
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert environment_checks.check_hostname().status == Status.OK


def test_a_missing_temporary_directory_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "none"))
    assert environment_checks.check_temporary_space().status == Status.FAIL


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/shop", "ext4"),
        ("/data/net/shop", "nfs4"),
        ("/data/network", "ext4"),
        ("/with blank/x", "9p"),
        ("/data/over/x", "cifs"),
        ("/elsewhere", "overlay"),
    ],
)
def test_the_innermost_and_latest_mount_determines_the_file_system(path: str, kind: str) -> None:
    mounts = (
        "overlay / overlay rw 0 0\n/dev/sda /data ext4 rw 0 0\nhost:/x /data/net nfs4 rw 0 0\n"
        "drive /with\\040blank 9p rw 0 0\ntmpfs /data/over tmpfs rw 0 0\n//host /data/over cifs rw 0 0\n"
    )
    assert file_system_of(Path(path), mounts) == kind


def test_an_intact_store_passes_every_check_and_is_not_changed(tmp_path: Path) -> None:
    from headrace.stores.embedded.connection import Database

    with headrace.open(tmp_path / "store", create=True) as store:
        findings = store.diagnose()
    assert [finding.status for finding in findings] == [Status.OK] * len(findings), findings
    assert {"Store: integrity", "Store: commits"} <= {finding.name for finding in findings}
    database = Database(tmp_path / "store")
    assert database.query("SELECT * FROM info WHERE key = 'doctor'") == []
    database.close()


def test_a_directory_without_a_store_and_a_damaged_store_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 1000)
    for directory, problem in ((tmp_path / "none", "no store here"), (tmp_path, "damaged")):
        assert main(["doctor", "--json", "-s", str(directory), "--store-option", "synchronous=full"]) == 1
        space, finding = json.loads(capsys.readouterr().out)["findings"][-2:]
        assert (space["name"], finding["name"], finding["status"]) == ("Store: free space", "Store", "fail")
        assert problem in finding["found"]
    assert main(["doctor", "-s", str(tmp_path), "--store-option", "synchronous=often"]) == 1
    assert "received: 'often'; valid: full, normal, off" in " ".join(capsys.readouterr().out.split())


def test_the_exit_code_is_1_if_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["counts"]["fail"] >= 1
    assert [finding["status"] for finding in report["findings"] if finding["name"] == "Java"] == ["fail"]


def test_a_foreign_error_of_a_store_is_a_finding_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the error of a store of another package."""

    def fail(*_: object, **__: object) -> None:
        raise KeyError("login with open-sesame, password=hunter2 at x://me:hunter2@host")

    monkeypatch.setattr(headrace, "open", fail)
    store = ["-s", "postgresql://me@host/db", "--store-option", "password=open-sesame"]
    for command in (["doctor"], ["table", "list"]):
        for more in ([], ["--json"]):
            assert main([*command, *store, *more]) == 1
            out, err = capsys.readouterr()
            assert "KeyError: 'login with ***, password=*** at x://me:***@host" in out + err
            assert "sesame" not in out + err
            assert "hunter2" not in out + err
            assert command != ["doctor"] or "Store" in out
