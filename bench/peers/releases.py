"""The programs of the peers: jars of Maven Central and a release of Spark, with pinned versions and checksums.

``python -m bench.peers.releases NAME …`` resolves the jars of a peer again, and writes their checksums to ``locks/``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

from headrace.errors import MissingDependencyError

CACHE = Path.home() / ".cache" / "headrace-bench"
_LOCKS = Path(__file__).parent / "locks"
_JARS = CACHE / "peers"
# The newest Spark with a release of each of Kafka's source and Delta Lake on Maven Central.
SPARK = "4.2.0"
_SPARK_SHA256 = "5ad689d53570ee1674193fd4f9bda065f0db3be9363a27d2a3406cc457b70b61"
KAFKA = "4.4.0"
DELTA = "4.4.0"
DEBEZIUM = "3.6.1.Final"
FLINK = "1.20.3"
# Its newest release is for Flink 1.20.
FLINK_CDC = "3.5.0"
FLINK_JDBC = "3.3.0-1.20"
# The jars that a user would name; their dependencies are in the locks.
_FLINK_CDC = [
    *(f"org.apache.flink:flink-{part}:{FLINK_CDC}" for part in ("connector-postgres-cdc", "connector-debezium")),
    *(f"org.apache.flink:flink-{part}:{FLINK}" for part in ("clients", "connector-base", "table-runtime")),
]
_ROOTS = {
    "kafka_broker": [f"org.apache.kafka:kafka_2.13:{KAFKA}"],
    "kafka_spark": [f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}"],
    "delta": [f"io.delta:delta-spark_4.2_2.13:{DELTA}"],
    "flink_cdc": _FLINK_CDC,
    "flink_sql": [
        *_FLINK_CDC,
        *(f"org.apache.flink:flink-{part}:{FLINK}" for part in ("table-planner-loader", "statebackend-rocksdb")),
        f"org.apache.flink:flink-connector-jdbc:{FLINK_JDBC}",
    ],
    "debezium": [f"io.debezium:debezium-embedded:{DEBEZIUM}", f"io.debezium:debezium-connector-postgres:{DEBEZIUM}"],
}
# Spark has these itself; two versions of a library in one process would be neither's.
_IN_SPARK = ("kafka_spark", "delta")


def jars(name: str) -> list[Path]:
    """Return the jars of a peer's part, which the first call fetches.

    Raises:
        RuntimeError: a jar does not have its checksum.
    """
    locked = dict(line.split() for line in (_LOCKS / f"{name}.txt").read_text().splitlines())
    paths = {_path(module): checksum for module, checksum in locked.items()}
    missing = [module for module in locked if not _path(module).exists()]
    if missing:
        _retrieve(missing, _JARS, with_dependencies=False)
    for path, checksum in paths.items():
        if (found := _sha256(path)) != checksum:
            raise RuntimeError(f"{path} is not the pinned jar: its SHA-256 is {found} instead of {checksum}")
    return list(paths)


def java(module: str = "java.base") -> str:
    """Return the program of Java, in JAVA_HOME or else on the PATH.

    Args:
        module: a module that it must have: ``jdk.compiler`` compiles programs, and is only in a JDK.

    Raises:
        MissingDependencyError: there is no Java, or it does not have the module.
    """
    program = shutil.which("java", path=os.path.expandvars("$JAVA_HOME/bin")) or shutil.which("java")
    listed = (
        "" if program is None else subprocess.run([program, "--list-modules"], capture_output=True, text=True).stdout
    )
    if program is None or f"{module}@" not in listed:
        raise MissingDependencyError(
            "the bench of a peer needs Java",
            received="no java in JAVA_HOME or on the PATH" if program is None else f"{program} without module {module}",
            valid="a JDK 17 or newer",
            remedy="install it (Debian, Ubuntu: apt install openjdk-17-jdk-headless) or point JAVA_HOME to it",
        )
    return program


def spark_home() -> Path:
    """Return the directory of package pyspark in the release of the peers, which the first call installs."""
    target = CACHE / f"pyspark-{SPARK}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            wanted = Path(work) / "requirements.txt"
            wanted.write_text(f"pyspark=={SPARK} --hash=sha256:{_SPARK_SHA256}\n")
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            unpacked = Path(work) / "packages"
            subprocess.run([*command, f"--target={unpacked}", f"--requirement={wanted}"], check=True)
            # At once: an interrupted call leaves no incomplete package.
            unpacked.rename(target)
    return target


def _path(module: str) -> Path:
    group, artifact, version = module.split(":")
    return _JARS / group / artifact / version / f"{artifact}-{version}.jar"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _retrieve(modules: list[str], directory: Path, *, with_dependencies: bool) -> None:
    """Fetch modules by Ivy, which comes with Spark."""
    directory.mkdir(parents=True, exist_ok=True)
    configuration = "default->default" if with_dependencies else "default->master"
    dependencies = "".join(
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)}"
        f' conf="{configuration}" transitive="{str(with_dependencies).lower()}"/>'
        for group, name, version in (module.split(":") for module in modules)
    )
    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "ivy.xml"
        file.write_text(
            '<ivy-module version="2.0"><info organisation="headrace" module="peers"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{dependencies}</dependencies></ivy-module>"
        )
        pattern = f"{directory}/[organisation]/[artifact]/[revision]/[artifact]-[revision].[ext]"
        command = [java(), "-jar", str(ivy), "-warn", "-cache", f"{CACHE}/ivy", "-ivy", str(file), "-retrieve", pattern]
        subprocess.run([*command, "-types", "jar", "bundle"], check=True, stdout=sys.stderr)


def _lock(name: str) -> None:
    """Resolve the jars of a part, and write their names and checksums."""
    with tempfile.TemporaryDirectory() as work:
        directory = Path(work)
        _retrieve(_ROOTS[name], directory, with_dependencies=True)
        known = [each.name for each in (spark_home() / "pyspark" / "jars").glob("*.jar")] if name in _IN_SPARK else []
        lines = []
        for path in sorted(directory.glob("*/*/*/*.jar")):
            module = ":".join(path.parent.relative_to(directory).parts)
            if not any(each.startswith(f"{path.parent.parent.name}-") for each in known):
                lines.append(f"{module} {_sha256(path)}\n")
    # In the classpath, Flink's connectors must come before Debezium: they replace some of its classes.
    lines.sort(key=lambda line: line.split()[0] not in _ROOTS[name])
    (_LOCKS / f"{name}.txt").write_text("".join(lines))


if __name__ == "__main__":
    for each in sys.argv[1:]:
        _lock(each)
