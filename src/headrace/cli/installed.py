"""The packages of the installation in `headrace doctor`. Their ranges of versions are those of headrace's metadata."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from headrace.model.findings import Finding, Status

_OWN = "headrace"
# What needs an extra. The metadata has no texts for them.
PURPOSES = dict(
    line.strip().split(": ")
    for line in """
    connect: Spark Connect
    delta: stores of Delta Lake tables
    iceberg: stores of Iceberg tables
    mcp: headrace mcp
    metrics: metrics for Prometheus
    otel: traces for OpenTelemetry
    pandas: rows as DataFrames
    pipelines: Spark Declarative Pipelines
    plot: figures in notebooks
    postgres: stores in PostgreSQL, DuckLakes
    prompt: completion in headrace sql
    query: headrace query
    serve: headrace serve
    spark: streams, streaming SQL, headrace demo
    tablestore: stores in Tablestore
    testing: the conformance tests of stores
    ui: headrace ui
    yt: stores in YTsaurus
    """.strip().splitlines()
)


def check_python() -> Finding:
    """Check the version of this Python."""
    found = ".".join(map(str, sys.version_info[:3]))
    valid = SpecifierSet(metadata(_OWN)["Requires-Python"])
    if not valid.contains(found):
        return Finding("Python", Status.FAIL, f"Python {found} at {sys.executable}", f"use Python {valid}")
    return Finding("Python", Status.OK, f"Python {found} at {sys.executable}")


def check_packages() -> list[Finding]:
    """Check the versions of the packages that every installation has."""
    return [_check_package(name, valid) for name, valid in requirements(_OWN).items()]


def check_extras() -> list[Finding]:
    """Check which extras are installed, and the versions of their packages."""
    return [check_extra(extra) for extra in sorted(metadata(_OWN).get_all("Provides-Extra") or ())]


def check_pyspark() -> Finding:
    """Check the version of pyspark, also of one that another package brings."""
    import pyspark

    from headrace.spark import connect, versions

    name, valid = "pyspark", requirements(_OWN, "spark")["pyspark"]
    packages = connect.providers()
    found = f"{pyspark.__version__} of {', '.join(packages) or pyspark.__file__}"
    if len(packages) > 1:
        remedy = f"pip uninstall {' '.join(packages)}, then install one of them again"
        return Finding(name, Status.FAIL, f"{found}, which overwrite each other's files", remedy)
    if not valid.contains(pyspark.__version__, prereleases=True):
        return Finding(name, Status.FAIL, found, f"use pyspark{valid}")
    if unsupported := versions.unsupported_python():
        return Finding(name, Status.WARN, f"{found}: {unsupported}", "use one of these, or another version of pyspark")
    return Finding(name, Status.OK, found if connect.has_classes() else f"{found}, only for servers of Spark Connect")


def requirements(package: str, *extras: str) -> dict[str, SpecifierSet]:
    """Return the valid versions of the packages that a package, or each of its extras, needs, by their names.

    Raises:
        PackageNotFoundError: the package is not installed.
    """
    found: dict[str, SpecifierSet] = {}
    for each in map(Requirement, requires(package) or ()):
        for name, valid in _needed(each, extras) if _applies(each, extras) else ():
            found[name] = found.get(name, SpecifierSet()) & valid
    return found


def _applies(requirement: Requirement, extras: tuple[str, ...]) -> bool:
    marker = requirement.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return not extras
    return any(marker.evaluate({"extra": each}) for each in extras)


def _needed(requirement: Requirement, extras: tuple[str, ...]) -> Iterator[tuple[str, SpecifierSet]]:
    """Yield the package of a requirement, and those of its extras."""
    if requirement.name != _OWN:
        yield requirement.name, requirement.specifier
    if requirement.extras and _version(requirement.name) is not None:
        yield from requirements(requirement.name, *sorted(requirement.extras)).items()


def _check_package(name: str, valid: SpecifierSet) -> Finding:
    found = _version(name)
    if found is None or not valid.contains(found, prereleases=True):
        return Finding(name, Status.FAIL, found or "not installed", f"pip install -U '{name}{valid}'")
    return Finding(name, Status.OK, found)


def check_extra(extra: str) -> Finding:
    """Check whether an extra is installed, and the versions of its packages."""
    name, remedy = f"{_OWN}[{extra}]", f"pip install -U '{_OWN}[{extra}]'"
    packages = requirements(_OWN, extra)
    versions = {package: _version(package) for package in packages}
    if missing := [package for package, version in versions.items() if version is None]:
        return Finding(name, Status.ABSENT, f"for {PURPOSES[extra]}; not installed: {', '.join(missing)}", remedy)
    found = ", ".join(f"{package} {version}" for package, version in versions.items())
    wrong = [
        f"{package}{packages[package]}"
        for package, version in versions.items()
        if version is not None and not packages[package].contains(version, prereleases=True)
    ]
    if wrong:
        return Finding(name, Status.WARN, f"{found}; it needs {', '.join(wrong)}", remedy)
    return Finding(name, Status.OK, found)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
