"""`Endpoint`: a server that gives an embedded store the HTTP API of another system, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Endpoint:
    """What ``headrace serve`` knows of an endpoint before it imports it. An entry point of ``headrace.endpoints``.

    Attributes:
        name: the name of its option of ``headrace serve``, which takes the port.
        system: the system whose API it has, in messages.
        root: what the directory of ``--root`` has for it, as a sentence.
        clients: how clients connect to it, as a sentence.
        configure: returns its configuration. Takes the directory, the file of ``--config`` or None, and as names
            ``environ`` and the settings.
        serve: serves a configuration at a port until the process is interrupted. Takes them, and as names ``host``
            and ``ready``, which is called with the address.
        settings: its own options of ``headrace serve``: a default and a help text by name.
        extra: what ``pip install`` installs for its packages.
        packages: these packages.
    """

    name: str
    system: str
    root: str
    clients: str
    configure: Callable[..., Any]
    serve: Callable[..., None]
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    extra: str = ""
    packages: tuple[str, ...] = ()
