"""Errors of the embedded store's tunnels as errors of the tunnel service.

For a missing object, the table service responds with 404, and the tunnel service with OTSParameterInvalid.
Clients retry only OTSTunnelServerUnavailable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headrace.errors import (
    AlreadyExistsError,
    ClientGoneError,
    NotFoundError,
    SequenceNumberError,
    StoreBusyError,
    TunnelTakenError,
)
from headrace_tablestore.wire.errors import TRIMMED, ServiceError


def missing(what: str) -> ServiceError:
    """Return the error for a missing table, tunnel or channel."""
    return ServiceError("OTSParameterInvalid", f"Requested {what} does not exist.")


def client_gone() -> ServiceError:
    return ServiceError("OTSResourceGone", "The client has timed out or was shut down.")


def expired() -> ServiceError:
    return ServiceError("OTSTunnelExpired", "The tunnel has expired: changes were removed before they were read.")


def trimmed() -> ServiceError:
    message = f"{TRIMMED} Requested stream data is already trimmed or does not exist."
    return ServiceError("OTSTunnelServerUnavailable", message)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the embedded store's errors into errors of the tunnel service. Other errors are not changed."""
    try:
        yield
    except NotFoundError as error:
        what = next((word for word in ("channel", "tunnel") if word in error.problem), "table")
        raise missing(what) from error
    except AlreadyExistsError as error:
        raise ServiceError("OTSTunnelExist", "The table has a tunnel of this name.") from error
    except ClientGoneError as error:
        raise client_gone() from error
    except TunnelTakenError as error:
        # This code ends a worker. A worker that only connected again would take the tunnel back from the query.
        raise ServiceError("OTSParameterInvalid", str(error)) from error
    except SequenceNumberError as error:
        raise ServiceError("OTSSequenceNumberNotMatch", str(error)) from error
    except StoreBusyError as error:
        raise ServiceError("OTSTunnelServerUnavailable", "The instance is busy.") from error
