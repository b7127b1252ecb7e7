"""The endpoint for ``headrace serve --tablestore``."""

from __future__ import annotations

from typing import Any

from headrace.http.endpoint import Endpoint


def _configure(*paths: Any, **settings: Any) -> Any:
    from headrace_tablestore.endpoint.configuration import Configuration

    return Configuration.load(*paths, **settings)


def _serve(*arguments: Any, **names: Any) -> None:
    from headrace_tablestore.endpoint.server import serve

    serve(*arguments, **names)


ENDPOINT = Endpoint(
    name="tablestore",
    system="Tablestore",
    root="For Tablestore, the directory of the instances: each is a sub-directory, created on first use.",
    clients="Clients of Tablestore connect to the endpoint http://HOST:PORT with an instance name of their choice and "
    "a configured access key.",
    configure=_configure,
    serve=_serve,
    extra="headrace[serve]",
    packages=("google.protobuf",),
)
