"""Several commands in one request."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from headrace_ytsaurus.endpoint.context import Answer, Command, Context
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.errors import refused, yt_error
from headrace_ytsaurus.endpoint.formats import YSON, write_value
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents
from headrace_ytsaurus.wire.yson.scalars import as_text

MAX_REQUESTS = 10_000
BATCH = "execute_batch"
_log = logging.getLogger("headrace")


def execute_batch(context: Context, parameters: Parameters, body: bytes) -> Answer:
    """Run commands one after the other. A failed command does not affect the others."""
    requests = parameters.sequence("requests")
    if len(requests) > MAX_REQUESTS:
        raise refused("too many requests in one batch", received=len(requests), valid=f"at most {MAX_REQUESTS}")
    batch = parameters.text("mutation_id", None)
    results = []
    for number, request in enumerate(requests):
        try:
            # The mutation ids of the parts follow from that of the batch, so a repeated batch is not done twice.
            result = _run(context, request, None if batch is None else f"{batch}/{number}")
            if context.output_format.name == "json":
                # A value that JSON cannot represent is an error of this part only.
                write_value(result, context.output_format)
            results.append(result)
        except Exception as error:
            answer = yt_error(error)
            if answer is None:
                _log.error("request of a batch failed", exc_info=error)
                answer = YtError(Code.GENERIC, "Internal server error")
            results.append({"error": answer.to_json()})
    return Answer.structured({"results": results})


def _run(context: Context, request: Any, mutation_id: str | None) -> dict[str, Any]:
    command, parameters = _read(context, request, mutation_id)
    inner = dataclasses.replace(context, input_format=YSON, output_format=YSON)
    body = b"" if command.input is None else documents.dumps(request.get("input"), text=False)
    answer = execute(inner, command, parameters, body)
    return {} if command.output is None or answer.content is not None else {"output": answer.value}


def _read(context: Context, request: Any, mutation_id: str | None) -> tuple[Command, Parameters]:
    if not isinstance(request, Mapping) or not isinstance(request.get("parameters", {}), Mapping):
        raise refused(
            "a request of a batch must be a map of command, parameters and input", received=repr(request)[:200]
        )
    name = as_text(request.get("command")) or ""
    command = context.cluster.commands.get(name)
    if command is None or command.input not in (None, "structured") or command.output == "tabular" or name == BATCH:
        valid = "a command whose input and output are structured values"
        raise refused("this command cannot be part of a batch", received=repr(name)[:100], valid=valid)
    values = dict(request.get("parameters", {}))
    if mutation_id is not None:
        values.setdefault("mutation_id", mutation_id)
    return command, Parameters(values, name)
