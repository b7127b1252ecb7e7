"""The extras of the headrace package that a command line needs, checked before the command begins."""

from __future__ import annotations

import importlib.util

from headrace.errors import MissingDependencyError

# The packages that show whether an extra is installed. Endpoints of one system need a part of ``serve``.
METRICS = ("metrics", "prometheus_client")
TRACES = ("otel", "opentelemetry")
QUERIES = ("query", "duckdb")
PAGE = ("ui", "duckdb", "jinja2", "prometheus_client")
TABLESTORE_ENDPOINT = ("serve", "google.protobuf")
YTSAURUS_ENDPOINT = ("serve", "yt.wrapper")


def check_extras(*wanted: tuple[str, ...], store_url: str | None = None) -> None:
    """Raise one error for all missing packages: the remedy is the one ``pip install`` that suffices.

    Args:
        wanted: extras, each followed by its packages.
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
            remedy=f"pip install 'headrace[{','.join(missing)}]'",
        )


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
