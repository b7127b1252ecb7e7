"""Errors of Tablestore as errors of headrace. Each is both: a `ServiceError` with the code, and a headrace error."""

from __future__ import annotations

from headrace.errors import (
    AlreadyExistsError,
    ClientGoneError,
    DataLossError,
    NotFoundError,
    OptionError,
    SequenceNumberError,
    StoreBusyError,
)
from headrace_tablestore.wire.errors import TRIMMED, ServiceError


class ServiceRefusedError(ServiceError, OptionError):
    """The access key, the signature or a permission is invalid."""


class ServiceNotFoundError(ServiceError, NotFoundError):
    """The table or tunnel does not exist."""


class ServiceExistsError(ServiceError, AlreadyExistsError):
    """A table or tunnel of this name exists."""


class ServiceDataLossError(ServiceError, DataLossError):
    """The requested changes were removed from the table's change log."""


class ServiceClientGoneError(ServiceError, ClientGoneError):
    """The client of the tunnel sent no heartbeat within its timeout."""


class ServiceSequenceError(ServiceError, SequenceNumberError):
    """The sequence number of a saved position is not above the last one."""


class ServiceBusyError(ServiceError, StoreBusyError):
    """The service was too busy for the request until the time limit."""


_BY_CODE: dict[str, tuple[type[ServiceError], str | None]] = {
    "OTSAuthFailed": (
        ServiceRefusedError,
        "check access_key_id, access_key_secret, sts_token and region, the name of the instance, "
        "and that this machine's clock is right within 15 minutes",
    ),
    "OTSPermissionDenied": (
        ServiceRefusedError,
        "give the access key's user the permission in Resource Access Management",
    ),
    "OTSTunnelExpired": (
        ServiceDataLossError,
        "the tunnel was read more slowly than the table keeps its changes: create a new tunnel, "
        "and set the table's retention_seconds higher",
    ),
    "OTSResourceGone": (ServiceClientGoneError, None),
    "OTSSequenceNumberNotMatch": (ServiceSequenceError, "another client also saves the position of this channel"),
    "OTSObjectAlreadyExist": (ServiceExistsError, None),
    "OTSTunnelExist": (ServiceExistsError, None),
    "OTSObjectNotExist": (ServiceNotFoundError, None),
}
_TRIMMED_REMEDY = (
    "the table no longer keeps these changes: create a new tunnel, and begin with the rows that the table has; or, if "
    "if the tunnel's committed position is further, continue there with failOnDataLoss=false"
)
_MISSING = ("not exist", "not found")


def failure_of(error: ServiceError, path: str, *, retried: bool = False) -> ServiceError:
    """Return the headrace error for an error of the service, or the error itself if no class fits.

    Args:
        path: the path of the request. The tunnel service reports a missing tunnel as a wrong parameter.
        retried: whether the request was repeated until the time limit.
    """
    kind: type[ServiceError] | None
    kind, remedy = _BY_CODE.get(error.code, (None, None))
    if TRIMMED in error.code or TRIMMED in error.message:
        kind, remedy = ServiceDataLossError, _TRIMMED_REMEDY
    elif error.code == "OTSParameterInvalid" and path.startswith("/tunnel/"):
        if any(words in error.message.lower() for words in _MISSING):
            kind = ServiceNotFoundError
    elif retried:
        kind = ServiceBusyError
    if kind is None:
        return error
    return kind(error.code, error.message, status=error.status, request_id=error.request_id, remedy=remedy)
