"""A cluster in the test's own process, and its commands as functions."""

from __future__ import annotations

import io
from typing import Any

from headrace.endpoints.ytsaurus.cluster import Cluster
from headrace.endpoints.ytsaurus.commands import COMMANDS, Answer
from headrace.endpoints.ytsaurus.mutations import execute
from headrace.endpoints.ytsaurus.parameters import Parameters
from headrace.wire.yson import documents

NO_INPUT: Any = object()


def call(cluster: Cluster, name: str, value: Any = NO_INPUT, /, **parameters: Any) -> Answer:
    """Run a command; the input is bytes of a binary command, and a structured value of others."""
    command = COMMANDS[name]
    context = cluster.context()
    body = b""
    if command.input == "binary":
        context.upload = io.BytesIO(value)
    elif value is not NO_INPUT:
        body = documents.dumps(value, text=False)
    return execute(context, command, Parameters(parameters, name), body)


def value_of(cluster: Cluster, path: str, transaction: str | None = None) -> Any:
    """Return what ``get`` answers."""
    return call(cluster, "get", path=path, transaction_id=transaction).value["value"]
