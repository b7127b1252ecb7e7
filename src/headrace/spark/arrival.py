"""The first code of headrace that runs in another process of Spark, and works where headrace is missing.

`headrace.spark.executors` sends the functions of this module as code, not as names, so this module imports only
Python's own library. It checks that the process has the version of headrace of the sender, before anything else of
headrace is loaded: objects of another version could be loaded wrongly.
"""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


def received(version: str, payload: bytes) -> Any:
    """Return an object that `headrace.spark.executors.Sent` has packed.

    Raises:
        ImportError: headrace is not installed here, or has another version than the sender.
    """
    check_version(version)
    kind, state = pickle.loads(payload)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


def calling(version: str, payload: bytes) -> Callable[..., Any]:
    """Return a function that checks the version, unpacks a function at its first call, and calls it."""
    unpacked: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not unpacked:
            check_version(version)
            unpacked.append(pickle.loads(payload))
        return unpacked[0](*arguments)

    return call


def check_version(version: str) -> None:
    """Raise ImportError unless headrace is here in this version."""
    here = f"host {socket.gethostname()}, Python {sys.executable}"
    remedy = (
        f"install headrace {version} where Spark's Python processes run, or send it with spark.archives or --py-files: "
        "see docs/deployment.md"
    )
    if find_spec("headrace") is None:
        raise ModuleNotFoundError(
            f"headrace is not installed in a Python process of Spark; received: {here}; {remedy}", name="headrace"
        )
    import headrace

    if headrace.__version__ != version:
        raise ImportError(
            f"headrace has another version in a Python process of Spark than in the driver; "
            f"received: headrace {headrace.__version__} on {here}; valid: headrace {version}; {remedy}",
            name="headrace",
        )
