"""The checks of the environment in `headrace doctor`. Each check is a function that returns a `Finding`."""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from headrace.cli import installed
from headrace.model.findings import Finding, Status, disk_space
from headrace.support import entry_points
from headrace.support.extras import SPARK, is_installed

OLDEST_SQLITE = (3, 53, 0)
_PROBE_SECONDS = 60
_OTHER_SQLITES = ("_sqlite3", "pysqlite3", "sqlcipher3", "adbc_driver_sqlite")


def check_worker_python() -> Finding:
    """Check that the Python of Spark's workers has the driver's version and packages.

    Spark uses PYSPARK_PYTHON, or else the ``python3`` on the PATH, not the Python of the driver.
    """
    name = "Python of Spark's workers"
    variable = os.environ.get("PYSPARK_PYTHON")
    chosen = variable or "python3"
    where = "PYSPARK_PYTHON" if variable else "python3 on the PATH; PYSPARK_PYTHON is not set"
    remedy = f"export PYSPARK_PYTHON={sys.executable}"
    # headrace.session() sets the right Python even if the variable is missing. Other sessions do not.
    severity = Status.FAIL if variable else Status.WARN
    probe = (
        "import importlib.util, json, sys; print(json.dumps([sys.executable, list(sys.version_info[:2]),"
        " [name for name in ('pyspark', 'pyarrow', 'pandas', 'headrace') if importlib.util.find_spec(name) is None]]))"
    )
    try:
        # -I keeps packages in the current directory from counting as installed.
        answer = subprocess.run(
            [chosen, "-I", "-c", probe], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True
        )
        executable, version, missing = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Finding(name, severity, f"{chosen} ({where}) does not run: {error}", remedy)
    found = f"Python {version[0]}.{version[1]} at {executable} ({where})"
    if tuple(version) != sys.version_info[:2]:
        found += f", but the driver is Python {sys.version_info[0]}.{sys.version_info[1]}"
        return Finding(name, severity, found, remedy)
    if missing:
        return Finding(name, severity, f"{found}, without {', '.join(missing)}", remedy)
    return Finding(name, Status.OK, found)


def check_driver_python() -> Finding:
    """Check that PYSPARK_DRIVER_PYTHON, which ``pyspark`` and ``spark-submit`` read, is unset or this Python."""
    name = "PYSPARK_DRIVER_PYTHON"
    variable = os.environ.get(name)
    if not variable:
        return Finding(name, Status.OK, "not set")
    program = shutil.which(variable)
    if program is None:
        return Finding(name, Status.FAIL, f"{variable} does not exist", f"unset {name}")
    if not Path(program).samefile(sys.executable):
        return Finding(
            name, Status.WARN, f"{program} is not this Python ({sys.executable})", f"unset {name} or make them the same"
        )
    return Finding(name, Status.OK, program)


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 2, 0) for ``4.2.0.dev1``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def check_sqlite() -> Finding:
    """Check that apsw's SQLite has checksums of pages, and not the bug that corrupts databases in WAL mode."""
    name, remedy = "SQLite (apsw)", "pip install -U 'apsw>=3.53'"
    try:
        import apsw.sqlite_extra

        from headrace.support.sqlite.opening import APSW_OF_PYPI
    except ImportError as error:
        return Finding(name, Status.FAIL, f"apsw cannot be imported: {error}", remedy)
    if not apsw.sqlite_extra.has("cksumvfs"):
        return Finding(name, Status.FAIL, "apsw has no checksums of pages (cksumvfs)", APSW_OF_PYPI)
    version = apsw.sqlite_lib_version()
    status = Status.OK if version_numbers(version) >= OLDEST_SQLITE else Status.FAIL
    return Finding(name, status, version, "" if status == Status.OK else remedy)


def check_other_sqlites() -> Finding:
    """Check that no other SQLite library is loaded: closing a file in one library drops the locks of the other."""
    name = "Other SQLite libraries"
    loaded = sorted(module for module in _OTHER_SQLITES if module in sys.modules)
    if loaded:
        return Finding(
            name,
            Status.WARN,
            f"this process has loaded {', '.join(loaded)} in addition to apsw",
            "never open a store's files with them: commits can be lost",
        )
    return Finding(name, Status.OK, "none is loaded")


def check_data_sources() -> Finding:
    """Check that Spark finds headrace's formats.

    Spark imports every module named pyspark_*. If one import fails, Spark finds no format.
    """
    from headrace.formats.registry import FORMATS

    name = "Spark's data sources"
    found: list[str] = []
    for module in sorted(info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")):
        try:
            source = getattr(importlib.import_module(module), "DefaultSource", None)
            if source is not None:
                found.append(str(source.name()))
        except Exception as error:
            return Finding(
                name,
                Status.FAIL,
                f"module {module} cannot be imported ({type(error).__name__}: {error}), which hides all formats",
                f"repair or uninstall the package that brings {module}",
            )
    missing = sorted(set(FORMATS) - set(found))
    if missing:
        return Finding(
            name,
            Status.FAIL,
            f"found {', '.join(found) or 'none'}, but not {', '.join(missing)}",
            "install the package that brings it where Spark's Python can import it; without --editable, which can hide "
            "its modules from Spark",
        )
    return Finding(name, Status.OK, ", ".join(found))


def check_packages() -> Finding:
    """Check that the stores, formats, endpoints and commands of all installed packages can be used."""
    from headrace.formats.source import Source
    from headrace.http.endpoint import Endpoint
    from headrace.stores.registry import openings

    name = "Parts of packages"
    kinds: dict[str, type] = {
        entry_points.FORMATS: Source,
        entry_points.ENDPOINTS: Endpoint,
        entry_points.COMMANDS: click.Command,
    }
    openings()
    for group, kind in kinds.items():
        entry_points.parts(group, kind)
    groups = (entry_points.STORES, *kinds)
    failures = [failure for group in groups for failure in entry_points.failures(group)]
    if failures:
        return Finding(name, Status.WARN, "; ".join(failures), "repair or uninstall the package")
    others = sorted({package for group in groups for package in entry_points.other_packages(group)})
    return Finding(name, Status.OK, f"headrace{''.join(f', {package}' for package in others)}")


def check_hostname() -> Finding:
    """Check that the host name resolves to an address, which Spark needs when it starts."""
    name = "Host name"
    remedy = "export SPARK_LOCAL_IP=127.0.0.1, or put the host name into /etc/hosts"
    local = os.environ.get("SPARK_LOCAL_IP")
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        if local:
            return Finding(name, Status.OK, f"{host} has no address, SPARK_LOCAL_IP is {local}")
        return Finding(name, Status.FAIL, f"{host} has no address ({error})", remedy)
    if local:
        return Finding(name, Status.OK, f"{host} is {address}, SPARK_LOCAL_IP is {local}")
    if ipaddress.ip_address(address).is_loopback:
        return Finding(
            name,
            Status.WARN,
            f"{host} is {address}, a loopback address: Spark warns and uses another one",
            "export SPARK_LOCAL_IP=127.0.0.1 to use only this machine",
        )
    return Finding(name, Status.OK, f"{host} is {address}")


def check_temporary_space() -> Finding:
    """Check that Spark can write shuffled and spilled data, and has space for it."""
    name = "Temporary space"
    directories = (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")
    free = {}
    for directory in directories:
        try:
            with tempfile.NamedTemporaryFile(dir=directory) as file:
                file.write(b"\0" * 4096)
            free[directory] = shutil.disk_usage(directory).free
        except OSError as error:
            return Finding(
                name,
                Status.FAIL,
                f"{directory} cannot be written: {error}",
                "set TMPDIR or SPARK_LOCAL_DIRS to another directory",
            )
    found = ", ".join(f"{directory} has {size / 2**30:.1f} GiB free" for directory, size in free.items())
    return disk_space(name, min(free.values()), found, "free some space, or set SPARK_LOCAL_DIRS to another directory")


def environment_findings() -> list[Finding]:
    """Return the findings that need neither a store nor a Spark session."""
    return [
        installed.check_python(),
        *installed.check_packages(),
        check_sqlite(),
        *installed.check_extras(),
        check_packages(),
        *(_of_spark() if is_installed(SPARK[1]) else ()),
        # After the data sources, because their imports can load a SQLite library.
        check_other_sqlites(),
    ]


def _of_spark() -> list[Finding]:
    from headrace.spark.connect import has_classes
    from headrace.spark.java import check_java

    found = [installed.check_pyspark(), check_data_sources()]
    if has_classes():
        found += [check_java(), check_worker_python(), check_driver_python(), check_hostname(), check_temporary_space()]
    return found
