"""The extras of the package headrace: one error where their packages are not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence

from headrace.errors import MissingDependencyError

# Each is what `pip install` installs, followed by the modules that show whether it is installed.
METRICS = ("headrace[metrics]", "prometheus_client")
PAGE = ("headrace[ui]", "duckdb", "jinja2", "prometheus_client")
PANDAS = ("headrace[pandas]", "pandas")
PLOTS = ("headrace[plot]", "matplotlib")
QUERIES = ("headrace[query]", "duckdb")
SPARK = ("headrace[spark]", "pyspark")
TOOLS = ("headrace[mcp]", "mcp", "duckdb")
TRACES = ("headrace[otel]", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


def check_extras(purpose: str, *wanted: tuple[str, ...]) -> None:
    """Raise one error for all missing packages: the remedy is the one ``pip install`` that suffices.

    Args:
        purpose: what needs them, for the error.
        wanted: what ``pip install`` installs, each followed by modules of it.

    Raises:
        MissingDependencyError: a package is not installed.
    """
    missing = {extra: [name for name in names if not is_installed(name)] for extra, *names in wanted}
    missing = {extra: names for extra, names in missing.items() if names}
    if missing:
        raise missing_packages(purpose, missing)


def missing_packages(purpose: str, missing: Mapping[str, Sequence[str]]) -> MissingDependencyError:
    """Return the error for missing packages.

    Args:
        purpose: what needs them.
        missing: what ``pip install`` installs, each with its missing modules.
    """
    return MissingDependencyError(
        f"packages for {purpose} are not installed",
        received="no module " + ", ".join(dict.fromkeys(name for names in missing.values() for name in names)),
        remedy=f"pip install {' '.join(map(repr, _joined(missing)))}",
    )


def is_installed(module: str) -> bool:
    """Return whether a module can be imported. Its parents are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # Its parent is missing.
        return False


def _joined(wanted: Iterable[str]) -> list[str]:
    """Return requirements with one entry for all extras of a package."""
    packages: dict[str, list[str]] = {}
    for package, _, extra in (requirement.partition("[") for requirement in wanted):
        packages.setdefault(package, []).extend(filter(None, [extra.removesuffix("]")]))
    return [f"{package}[{','.join(extras)}]" if extras else package for package, extras in packages.items()]
