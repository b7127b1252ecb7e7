"""The endpoint for ``headrace serve --tablestore``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import StoreError
from headrace.http.endpoint import Endpoint
from headrace.http.listening import LOOPBACK
from headrace.http.serving import run

if TYPE_CHECKING:
    from headrace_tablestore.endpoint.configuration import Configuration


def _configure(*paths: Any, **settings: Any) -> Any:
    from headrace_tablestore.endpoint.configuration import Configuration

    return Configuration.load(*paths, **settings)


def serve(
    configuration: Configuration, port: int, *, ready: Callable[[str, int], None], host: str = LOOPBACK, **limits: Any
) -> None:
    """Serve until the process gets SIGINT or SIGTERM; see `headrace.http.serving.run`.

    Args:
        limits: limits of the application and of the server other than the defaults.
    """
    from headrace_tablestore.endpoint.app import TablestoreApp

    try:
        configuration.root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create the directory of the instances: {error.strerror}", received=str(configuration.root)
        ) from error
    run(lambda: TablestoreApp(configuration, **limits), port, host=host, ready=ready)


ENDPOINT = Endpoint(
    name="tablestore",
    system="Tablestore",
    root="For Tablestore, the directory of the instances: each is a sub-directory, created on first use.",
    clients="Clients of Tablestore connect to the endpoint http://HOST:PORT with an instance name of their choice and "
    "a configured access key.",
    configure=_configure,
    serve=serve,
    extra="headrace[serve]",
    packages=("google.protobuf",),
)
