"""Dispatching: a command runs if its prerequisites are met, once for each mutation id, in the transaction it needs.

Clients send a request again if the answer is lost. The answer of each mutation is therefore saved in the transaction
that makes the changes, and a repeated mutation gets the saved answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from headrace.stores.embedded.for_servers import Database
from headrace_ytsaurus.endpoint.context import Answer, Command, Context
from headrace_ytsaurus.endpoint.errors import no_such_transaction, refused
from headrace_ytsaurus.endpoint.ids import NULL_ID
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents

KEPT_MICROSECONDS = 600_000_000
"""Answers are kept for 10 minutes; clients repeat a request for some minutes."""


def delete_old_answers(database: Database, now: int) -> None:
    """Delete the answers that no client asks for any more."""
    if database.query("SELECT 1 FROM yt_mutation WHERE done < ? LIMIT 1", (now - KEPT_MICROSECONDS,)):
        with database.write():
            database.execute("DELETE FROM yt_mutation WHERE done < ?", (now - KEPT_MICROSECONDS,))


def execute(context: Context, command: Command, parameters: Parameters, body: bytes) -> Answer:
    """Run a command, and return its answer in the form of the client's version of the API."""
    if context.version == 4:
        return _execute(context, command, parameters, body)
    answer = _execute(context, command, Parameters({**parameters, "return_only_value": True}, command.name), body)
    if command.volatile and answer.value == {}:
        return Answer.raw(b"")
    for name in command.alone:
        if name in answer.value:
            return Answer.structured(answer.value[name])
    return answer


def _execute(context: Context, command: Command, parameters: Parameters, body: bytes) -> Answer:
    _check_prerequisites(context, parameters)
    if command.atomic or (command.volatile and command.heavy):
        # Locks of an expired transaction must not cause a conflict, even if background work has not aborted it yet.
        context.transactions.abort_expired()
    if command.atomic:
        return _execute_once(context, command, parameters, body)
    if not command.volatile and not command.heavy:
        with context.database.read():
            return _run(context, command, parameters, body)
    return _run(context, command, parameters, body)


def _run(context: Context, command: Command, parameters: Parameters, body: bytes) -> Answer:
    return command.run(context, parameters, body) or Answer.structured({})


def _execute_once(context: Context, command: Command, parameters: Parameters, body: bytes) -> Answer:
    mutation_id = parameters.text("mutation_id", None)
    mutation_id = None if mutation_id == NULL_ID else mutation_id
    with contextlib.ExitStack() as context.undo:
        answer = _commit_once(context, command, parameters, body, mutation_id)
        context.undo.pop_all()
    return answer


def _commit_once(
    context: Context, command: Command, parameters: Parameters, body: bytes, mutation_id: str | None
) -> Answer:
    database = context.database
    with database.write():
        if mutation_id is not None:
            done = database.query("SELECT answer FROM yt_mutation WHERE id = ?", (mutation_id,))
            if done:
                return Answer.structured(documents.loads(done[0][0]))
        # They are checked again, because from here on no other request can change them.
        _check_prerequisites(context, parameters)
        answer = _run(context, command, parameters, body)
        if mutation_id is not None:
            written = documents.dumps(answer.value, text=False)
            database.execute("INSERT INTO yt_mutation VALUES (?, ?, ?)", (mutation_id, written, context.now))
        return answer


def _check_prerequisites(context: Context, parameters: Parameters) -> None:
    """Check the prerequisites of a request.

    Raises:
        YtError: 1000, a prerequisite is not met.
    """
    for transaction_id in parameters.sequence("prerequisite_transaction_ids", []):
        if context.transactions.find(str(transaction_id)) is None:
            raise _failed(f"transaction {transaction_id} is missing", no_such_transaction(str(transaction_id)))
    for each in parameters.sequence("prerequisite_revisions", []):
        if not isinstance(each, Mapping):
            raise refused("A prerequisite revision is a map", received=repr(each)[:200], valid="path, revision")
        _check_revision(context, Parameters(each))


def _check_revision(context: Context, prerequisite: Parameters) -> None:
    path: Any = prerequisite.path()
    chain = context.transactions.chain(prerequisite.text("transaction_id", None))
    resolved = context.cypress.look(chain, path.node)
    if resolved.rest:
        raise _failed(f"{path.text} does not exist")
    revision, expected = context.cypress.changed(resolved.node), prerequisite.number("revision")
    if revision != expected:
        raise _failed(f"{path.text} has revision {revision}, not {expected}")


def _failed(reason: str, *inner: YtError) -> YtError:
    return YtError(Code.PREREQUISITE_CHECK_FAILED, f"Prerequisite check failed: {reason}", inner=inner)
