"""Commands of a cluster in the test's process, as functions."""

from __future__ import annotations

import io
from typing import Any

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.context import Answer
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.yson import documents

NO_INPUT: Any = object()


def call(cluster: Cluster, name: str, value: Any = NO_INPUT, /, **parameters: Any) -> Answer:
    """Run a command. The input is bytes, rows or a value, as the command's kind of input says."""
    command = COMMANDS[name]
    context = cluster.context()
    body = b""
    if command.input == "binary":
        context.upload = io.BytesIO(value)
    elif command.input == "tabular" and value is not NO_INPUT:
        body = b"".join(documents.dumps(row, text=False) + b";" for row in value)
    elif value is not NO_INPUT:
        body = documents.dumps(value, text=False)
    return execute(context, command, Parameters(parameters, name), body)


def value_of(cluster: Cluster, path: str, transaction: str | None = None) -> Any:
    """Return the value of ``get``."""
    return call(cluster, "get", path=path, transaction_id=transaction).value["value"]


def rows_of(cluster: Cluster, path: str, transaction: str | None = None) -> Any:
    """Return the rows of ``read_table``."""
    answer = call(cluster, "read_table", path=path, transaction_id=transaction)
    assert answer.stream is not None
    return documents.loads(b"[" + b"".join(answer.stream) + b"]")


def bytes_of(cluster: Cluster, path: str, transaction: str | None = None) -> bytes:
    """Return the bytes of ``read_file``."""
    answer = call(cluster, "read_file", path=path, transaction_id=transaction)
    return answer.content if answer.stream is None else b"".join(answer.stream)  # type: ignore[return-value]


def start(cluster: Cluster, parent: str | None = None, **parameters: Any) -> str:
    """Begin a master transaction, and return its id."""
    given = {"timeout": 600_000, **parameters}
    return str(call(cluster, "start_transaction", transaction_id=parent, **given).value["transaction_id"])


def commit(cluster: Cluster, transaction: str) -> None:
    call(cluster, "commit_transaction", transaction_id=transaction)


def abort(cluster: Cluster, transaction: str) -> None:
    call(cluster, "abort_transaction", transaction_id=transaction)
