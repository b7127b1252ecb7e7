"""The endpoint for ``headrace serve --ytsaurus``."""

from __future__ import annotations

from typing import Any

from headrace.http.endpoint import Endpoint


def _configure(*paths: Any, **settings: Any) -> Any:
    from headrace_ytsaurus.endpoint.configuration import Configuration

    return Configuration.load(*paths, **settings)


def _serve(*arguments: Any, **names: Any) -> None:
    from headrace_ytsaurus.endpoint.server import serve

    serve(*arguments, **names)


ENDPOINT = Endpoint(
    name="ytsaurus",
    system="YTsaurus",
    root="For YTsaurus, the directory of the store.",
    clients="Clients of YTsaurus connect to the proxy http://HOST:PORT with a configured token.",
    configure=_configure,
    serve=_serve,
    settings={"cluster_name": ("primary", "The name of the cluster, for clients of YTsaurus.")},
    extra="headrace[serve]",
    packages=("yt.wrapper",),
)
