"""The extras of the headrace package that a command line needs, checked before the command begins."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from headrace.errors import MissingDependencyError

# The packages that show whether an extra is installed.
METRICS = ("headrace[metrics]", "prometheus_client")
TRACES = ("headrace[otel]", "opentelemetry")
QUERIES = ("headrace[query]", "duckdb")
TOOLS = ("headrace[mcp]", "mcp", "duckdb")
PAGE = ("headrace[ui]", "duckdb", "jinja2", "prometheus_client")


def check_extras(*wanted: tuple[str, ...], store_url: str | None = None) -> None:
    """Raise one error for all missing packages: the remedy is the one ``pip install`` that suffices.

    Args:
        wanted: what ``pip install`` installs, each followed by packages of it.
        store_url: the store that the command opens, whose packages are checked, too.

    Raises:
        MissingDependencyError: a package is not installed.
        OptionError: the URL is not one of a store.
    """
    wanted = (*wanted, _of_store(store_url)) if store_url is not None else wanted
    missing = {extra: [name for name in names if not _is_installed(name)] for extra, *names in wanted}
    missing = {extra: names for extra, names in missing.items() if names}
    if missing:
        raise MissingDependencyError(
            "this command needs packages that are not installed",
            received=", ".join(dict.fromkeys(name for names in missing.values() for name in names)),
            remedy=f"pip install {' '.join(map(repr, _joined(missing)))}",
        )


def _joined(wanted: Iterable[str]) -> list[str]:
    """Return requirements with one entry for all extras of a package."""
    packages: dict[str, list[str]] = {}
    for package, _, extra in (requirement.partition("[") for requirement in wanted):
        packages.setdefault(package, []).extend(filter(None, [extra.removesuffix("]")]))
    return [f"{package}[{','.join(extras)}]" if extras else package for package, extras in packages.items()]


def _of_store(url: str) -> tuple[str, ...]:
    from headrace.stores.registry import opening_of

    opening = opening_of(url)
    return (opening.extra or "", *opening.packages)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        # Its parent is missing.
        return False
