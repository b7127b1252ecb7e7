"""What Tablestore's errors are in headrace's words. Each is both: the service's error with its code, and headrace's."""

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
from headrace.wire.tablestore.errors import TRIMMED, ServiceError


class ServiceRefusedError(ServiceError, OptionError):
    """The access key, the signature or a permission is not right."""


class ServiceNotFoundError(ServiceError, NotFoundError):
    """The instance has no such table or tunnel."""


class ServiceExistsError(ServiceError, AlreadyExistsError):
    """A table or tunnel of that name is there."""


class ServiceDataLossError(ServiceError, DataLossError):
    """The table's change log no longer has what was asked for."""


class ServiceClientGoneError(ServiceError, ClientGoneError):
    """The tunnel's client let its time-out pass."""


class ServiceSequenceError(ServiceError, SequenceNumberError):
    """A channel's position was saved with a number that is not above the saved one."""


class ServiceBusyError(ServiceError, StoreBusyError):
    """The service had no time for the request, however often it was sent."""


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
    "OTSSequenceNumberNotMatch": (ServiceSequenceError, "somebody else saves this channel's position too"),
    "OTSObjectAlreadyExist": (ServiceExistsError, None),
    "OTSTunnelExist": (ServiceExistsError, None),
    "OTSObjectNotExist": (ServiceNotFoundError, None),
}
_TRIMMED_REMEDY = (
    "the table no longer keeps these changes: create a new tunnel, and begin with the rows that the table has; or, if "
    "the tunnel's own checkpoint is further on, go on from there with failOnDataLoss=false"
)
_MISSING = ("not exist", "not found")


def failure_of(error: ServiceError, path: str, *, retried: bool = False) -> ServiceError:
    """Return the error that users get for one of the service's; the same one where there is no better word for it.

    Args:
        path: of the request. The tunnel service tells of missing things with the code of wrong parameters.
        retried: whether the request was sent until there was no more time for it.
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
