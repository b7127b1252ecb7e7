"""The endpoint for ``headrace serve --ytsaurus``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.http.endpoint import Endpoint
from headrace.http.listening import LOOPBACK
from headrace.http.serving import run

if TYPE_CHECKING:
    from headrace_ytsaurus.endpoint.configuration import Configuration


def _configure(*paths: Any, **settings: Any) -> Any:
    from headrace_ytsaurus.endpoint.configuration import Configuration

    return Configuration.load(*paths, **settings)


def serve(
    configuration: Configuration, port: int, *, ready: Callable[[str, int], None], host: str = LOOPBACK, **limits: Any
) -> None:
    """Serve until the process receives SIGINT or SIGTERM; see `headrace.http.serving.run`.

    Args:
        limits: limits of the application and of the server other than the defaults.

    Raises:
        OptionError: another process serves the same directory.
    """
    from headrace_ytsaurus.endpoint.app import YtsaurusApp

    run(lambda: YtsaurusApp(configuration, **limits), port, host=host, ready=ready)


ENDPOINT = Endpoint(
    name="ytsaurus",
    system="YTsaurus",
    root="For YTsaurus, the directory of the store.",
    clients="Clients of YTsaurus connect to the proxy http://HOST:PORT with a configured token.",
    configure=_configure,
    serve=serve,
    settings={"cluster_name": ("primary", "The name of the cluster, for clients of YTsaurus.")},
    extra="headrace[serve]",
    packages=("yt.wrapper",),
)
