"""The endpoint as a server process."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import StoreError
from headrace.http.limits import Limits
from headrace.http.listening import LOOPBACK
from headrace.http.serving import run
from headrace_tablestore.endpoint.app import Bounds, TablestoreApp
from headrace_tablestore.endpoint.configuration import Configuration


def serve(
    configuration: Configuration,
    port: int,
    *,
    host: str = LOOPBACK,
    ready: Callable[[str, int], None],
    bounds: Bounds | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until the process gets SIGINT or SIGTERM; see `headrace.http.serving.run`."""
    try:
        configuration.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create the directory of the instances: {error.strerror}", received=str(configuration.root)
        ) from error
    run(lambda: TablestoreApp(configuration, bounds=bounds, limits=limits), port, host=host, ready=ready)
