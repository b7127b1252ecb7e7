"""Prerequisites of a request: open transactions, and revisions of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.errors import no_such_transaction, refused
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.wire.errors import Code, YtError


def check_prerequisites(context: Context, parameters: Parameters) -> None:
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


def _check_revision(context: Context, given: Parameters) -> None:
    path: Any = given.path()
    chain = context.transactions.chain(given.text("transaction_id", None))
    found = context.cypress.look(chain, path.node)
    if found.rest:
        raise _failed(f"{path.text} does not exist")
    revision, wanted = context.cypress.changed(found.node), given.number("revision")
    if revision != wanted:
        raise _failed(f"{path.text} has revision {revision}, not {wanted}")


def _failed(reason: str, *inner: YtError) -> YtError:
    return YtError(Code.PREREQUISITE_CHECK_FAILED, f"Prerequisite check failed: {reason}", inner=inner)
