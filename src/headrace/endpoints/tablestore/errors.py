"""What goes wrong behind the endpoint, as errors of Tablestore's service."""

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
from headrace.wire.tablestore.errors import ServiceError

INTERNAL = "OTSInternalServerError"


def invalid(problem: str, *, received: object = None, valid: str | Iterable[object] | None = None) -> ServiceError:
    """Return the error for a parameter that is wrong; the arguments are those of `HeadraceError`."""
    return ServiceError("OTSParameterInvalid", str(OptionError(problem, received=received, valid=valid)))


def refused(message: str) -> ServiceError:
    """Return the error for a wrong parameter, in the service's own words: tests of its clients compare them."""
    return ServiceError("OTSParameterInvalid", message)


def no_such_table() -> ServiceError:
    return ServiceError("OTSObjectNotExist", "Requested table does not exist.")


def condition_failed() -> ServiceError:
    return ServiceError("OTSConditionCheckFail", "Condition check failed.")


def service_error(error: Exception) -> ServiceError | None:
    """Return what a client is told of an error of a handler; None for one that is nobody's mistake but ours."""
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
