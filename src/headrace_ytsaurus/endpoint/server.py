"""The endpoint as a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import MissingDependencyError
from headrace.http.limits import Limits
from headrace.http.listening import LOOPBACK
from headrace.http.serving import run
from headrace_ytsaurus.endpoint.configuration import Configuration

if TYPE_CHECKING:
    from headrace_ytsaurus.endpoint.app import Bounds


def serve(
    configuration: Configuration,
    port: int,
    *,
    host: str = LOOPBACK,
    ready: Callable[[str, int], None],
    bounds: Bounds | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve until the process receives SIGINT or SIGTERM; see `headrace.http.serving.run`.

    Raises:
        MissingDependencyError: YTsaurus' client library is not installed; the endpoint uses its YSON parser.
        OptionError: another process serves the same directory.
    """
    try:
        from headrace_ytsaurus.endpoint.app import YtsaurusApp
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "yt":
            raise
        raise MissingDependencyError(
            "the endpoint needs a package that is not installed",
            received="ytsaurus-client",
            remedy="pip install 'headrace[serve]'",
        ) from None
    run(lambda: YtsaurusApp(configuration, bounds=bounds, limits=limits), port, host=host, ready=ready)
