"""Errors of Tablestore's service: codes, HTTP statuses, bodies, and which errors are transient."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError

from headrace.errors import StoreError
from headrace_tablestore.wire import table_pb2
from headrace_tablestore.wire.signatures import REQUEST_ID

STATUS: Mapping[str, int] = MappingProxyType(
    {
        "OTSParameterInvalid": 400,
        "OTSInvalidPK": 400,
        "OTSDataOutOfRange": 400,
        "OTSOutOfRowSizeLimit": 400,
        "OTSOutOfColumnCountLimit": 400,
        "OTSTunnelExpired": 400,
        "OTSSequenceNumberNotMatch": 400,
        "OTSAuthFailed": 403,
        "OTSPermissionDenied": 403,
        "OTSConditionCheckFail": 403,
        "OTSQuotaExhausted": 403,
        "OTSCapacityUnitExhausted": 403,
        "OTSNotEnoughCapacityUnit": 403,
        "OTSObjectNotExist": 404,
        "OTSTableNotReady": 404,
        "OTSMethodNotAllowed": 405,
        "OTSRequestTimeout": 408,
        "OTSObjectAlreadyExist": 409,
        "OTSRowOperationConflict": 409,
        "OTSTunnelExist": 409,
        "OTSResourceGone": 410,
        "OTSRequestBodyTooLarge": 413,
        "OTSInternalServerError": 500,
        "OTSServerBusy": 503,
        "OTSPartitionUnavailable": 503,
        "OTSTimeout": 503,
        "OTSServerUnavailable": 503,
        "OTSTunnelServerUnavailable": 503,
    }
)
"""The HTTP status of each code."""

TRIMMED = "OTSTrimmedDataAccess"
"""The begin of the message of an OTSTunnelServerUnavailable for trimmed changes, for which retries are useless."""

_BUSY = frozenset(
    {
        "OTSNotEnoughCapacityUnit",
        "OTSOperationConflict",
        "OTSOperationThrottled",
        "OTSPartitionUnavailable",
        "OTSRowOperationConflict",
        "OTSServerBusy",
        "OTSTableNotReady",
    }
)
_UNCERTAIN = frozenset({"OTSInternalServerError", "OTSServerUnavailable", "OTSTimeout", "OTSTunnelServerUnavailable"})
_TOO_OFTEN = "Too frequent table operations."
_LONGEST_MESSAGE = 1000


class ServiceError(StoreError):
    """The service refused a request. ``code`` begins with ``OTS``; ``status`` is the HTTP status."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int | None = None,
        request_id: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.code = code
        self.status = STATUS.get(code, 500) if status is None else status
        self.message = message
        self.request_id = request_id
        text = f"Tablestore answered {code}" + (f": {message.rstrip('.')}" if message else "")
        super().__init__(text + (f" (request {request_id})" if request_id else ""), remedy=remedy)

    def may_pass(self, *, repeatable: bool) -> bool:
        """Return whether a retry of the request is safe and can succeed.

        The service does not start a request that it refuses as too busy. After other errors a write may have been
        done, so only a repeatable request can be retried.
        """
        if self.code in _BUSY or (self.code == "OTSQuotaExhausted" and self.message == _TOO_OFTEN):
            return True
        if TRIMMED in self.message or not repeatable:
            return False
        return self.code in _UNCERTAIN or self.status in (500, 502, 503, 504)


def body(code: str, message: str) -> bytes:
    """Return the body of an error response."""
    return table_pb2.Error(code=code, message=message).SerializeToString()


def parse(status: int, headers: Mapping[str, str], body: bytes) -> ServiceError:
    """Return the error of a response whose status is not 200.

    A body that is not an error of the service gets a code that follows from the status.

    Args:
        headers: the headers of the response; names in any case.
    """
    request_id = next((value for name, value in headers.items() if name.lower() == REQUEST_ID), None)
    try:
        error = table_pb2.Error.FromString(body)
        code, message = error.code, error.message[:_LONGEST_MESSAGE]
    except DecodeError:
        code, message = "", ""
    if not code:
        # The response of a proxy, or of another server than Tablestore.
        code = "OTSServerUnavailable" if status >= 500 else "OTSClientError"
        message = f"HTTP status {status} without a readable error"
    return ServiceError(code, message, status=status, request_id=request_id)
