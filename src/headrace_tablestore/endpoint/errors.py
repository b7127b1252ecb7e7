"""Errors of the embedded store as errors of Tablestore's service."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    OptionError,
    StoreBusyError,
    StoreError,
)
from headrace_tablestore.wire.errors import ServiceError

INTERNAL = "OTSInternalServerError"


def invalid(problem: str, *, received: object = None, valid: str | Iterable[object] | None = None) -> ServiceError:
    """Return the error for an invalid parameter. The arguments are those of `HeadraceError`."""
    return ServiceError("OTSParameterInvalid", str(OptionError(problem, received=received, valid=valid)))


def refused(message: str) -> ServiceError:
    """Return the error for an invalid parameter with the service's own message, which its clients' tests compare."""
    return ServiceError("OTSParameterInvalid", message)


def no_such_table() -> ServiceError:
    return ServiceError("OTSObjectNotExist", "Requested table does not exist.")


def condition_failed() -> ServiceError:
    return ServiceError("OTSConditionCheckFail", "Condition check failed.")


def service_error(error: Exception) -> ServiceError | None:
    """Return the error that a client gets for an error of a handler; None for an internal error."""
    match error:
        case ServiceError():
            return error
        case NotFoundError():
            return no_such_table()
        case AlreadyExistsError():
            return ServiceError("OTSObjectAlreadyExist", "Requested table already exists.")
        case StoreBusyError():
            return ServiceError("OTSServerBusy", "The instance is busy.")
        case StoreError():
            return None
        case HeadraceError():
            return ServiceError("OTSParameterInvalid", str(error))
    return None
