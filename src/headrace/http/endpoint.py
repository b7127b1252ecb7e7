"""`Endpoint`: a server that gives an embedded store the HTTP API of another system, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from headrace.http.listening import LOOPBACK
from headrace.http.serving import run


@dataclass(frozen=True)
class Endpoint:
    """What ``headrace serve`` knows of an endpoint before it imports it. An entry point of ``headrace.endpoints``.

    Attributes:
        name: the name of its option of ``headrace serve``, which takes the port.
        system: the system whose API it has, in messages.
        root: what the directory of ``--root`` has for it, as a sentence.
        clients: how clients connect to it, as a sentence.
        configuration: the class of its configuration, as ``module:name``. Its ``load`` takes the directory, the file of
            ``--config`` or None, and as names ``environ`` and the settings.
        application: the class of its `headrace.http.application.Application`, as ``module:name``.
        settings: its own options of ``headrace serve``: a default and a help text by name.
        extra: what ``pip install`` installs for its packages.
        packages: these packages.
    """

    name: str
    system: str
    root: str
    clients: str
    configuration: str
    application: str
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    extra: str = ""
    packages: tuple[str, ...] = ()

    def configure(self, *paths: Any, **settings: Any) -> Any:
        """Return the configuration."""
        return resolve_name(self.configuration).load(*paths, **settings)

    def serve(
        self, configuration: Any, port: int, *, ready: Callable[[str, int], None], host: str = LOOPBACK, **limits: Any
    ) -> None:
        """Serve until the process gets SIGINT or SIGTERM; see `headrace.http.serving.run`.

        Args:
            limits: limits of the application and of the server other than the defaults.
        """
        make = resolve_name(self.application)
        run(lambda: make(configuration, **limits), port, host=host, ready=ready)
