"""Authentication: what a request must bring before its body is looked at, and the headers that every answer has."""

from __future__ import annotations

import datetime
import hmac
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.endpoints.tablestore.configuration import INSTANCE_NAMES, Configuration
from headrace.endpoints.tablestore.errors import invalid
from headrace.endpoints.unpacking import (
    Budget,
    CutOffError,
    ExhaustedError,
    PackedError,
    Parts,
    Share,
    TooLongError,
    inflate,
    read_all,
)
from headrace.wire.tablestore.errors import ServiceError
from headrace.wire.tablestore.limits import CLOCK_SKEW, MAX_BODY_BYTES, is_instance_name
from headrace.wire.tablestore.signatures import (
    ACCESS_KEY_ID,
    AUTHORIZATION,
    CONTENT_MD5,
    CONTENT_TYPE,
    DATE,
    INSTANCE,
    REQUEST_ID,
    VERSION,
    Credentials,
    content_md5,
    format_date,
    parse_date,
    response_authorization,
    verify_request,
)

COMPRESSION = "x-ots-request-compress-type"
_NEEDED = (DATE, VERSION, ACCESS_KEY_ID, INSTANCE, CONTENT_MD5)


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the key that signed it, and the instance it is for."""

    credentials: Credentials
    instance: str


def new_request_id() -> str:
    return str(uuid.uuid4())


def admit(path: str, headers: Mapping[str, str], configuration: Configuration) -> Caller:
    """Check the headers of a request: its signature, its date, and whether the key may use the instance.

    Args:
        headers: names in lower case.

    Raises:
        ServiceError: OTSParameterInvalid for a header that is missing, else OTSAuthFailed.
    """
    for name in _NEEDED:
        if not headers.get(name):
            raise invalid("a header is missing", received=name)
    key = configuration.keys.get(headers[ACCESS_KEY_ID].strip())
    if key is None:
        raise _refused("The AccessKeyID does not exist.")
    if not verify_request(path, headers, key.credentials.access_key_secret):
        raise _refused("Signature mismatch.")
    date = parse_date(headers[DATE])
    if date is None:
        raise _refused("The date of the request is no date: x-ots-date.")
    skew = abs((datetime.datetime.now(datetime.UTC) - date).total_seconds())
    if skew > CLOCK_SKEW:
        raise _refused("The difference between the date of the request and the server's is more than 15 minutes.")
    instance = headers[INSTANCE].strip()
    if not is_instance_name(instance):
        raise _refused(f"The instance is not found: its name has to be {INSTANCE_NAMES}.")
    if not key.may_use(instance):
        raise _refused("The instance is not found.")
    return Caller(key.credentials, instance)


@contextmanager
def unpacked(body: bytes, headers: Mapping[str, str], budget: Budget) -> Iterator[bytes]:
    """Give the message that a body holds, after checking its MD5; a compressed one takes its bytes from a budget.

    Raises:
        ServiceError: OTSAuthFailed, if the MD5 is another; OTSRequestBodyTooLarge; OTSServerBusy; OTSParameterInvalid.
    """
    if not hmac.compare_digest(content_md5(body).encode(), headers[CONTENT_MD5].strip().encode()):
        raise _refused("The MD5 of the body is not that of the header x-ots-contentmd5.")
    compression = headers.get(COMPRESSION, "").strip()
    if not compression:
        yield body
        return
    if compression != "deflate":
        raise invalid("unknown compression", received=compression, valid="deflate")
    share = Share(budget, MAX_BODY_BYTES)
    try:
        yield _inflated(body, share)
    finally:
        share.free()


def _inflated(body: bytes, share: Share) -> bytes:
    try:
        return read_all(inflate(Parts([body])), share.take)
    except TooLongError:
        raise too_large() from None
    except ExhaustedError:
        raise ServiceError("OTSServerBusy", "Too many bytes are waiting.") from None
    except CutOffError:
        raise invalid("the compressed body of the request is not complete") from None
    except PackedError:
        raise invalid("the body of the request is not compressed as its headers say") from None


def too_large() -> ServiceError:
    return ServiceError("OTSRequestBodyTooLarge", f"The body of a request has at most {MAX_BODY_BYTES} bytes.")


def answer_headers(
    path: str, request_id: str, body: bytes, caller: Caller | None, request_headers: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers of an answer. It is signed if the request was; nobody else has a key to check it with."""
    headers = {
        CONTENT_MD5: content_md5(body),
        CONTENT_TYPE: "protocol buffer",
        DATE: format_date(datetime.datetime.now(datetime.UTC)),
        REQUEST_ID: request_id,
    }
    if caller is not None:
        key_id, secret = caller.credentials.access_key_id, caller.credentials.access_key_secret
        headers[AUTHORIZATION] = response_authorization(path, headers, key_id, secret, request_headers)
    return headers


def _refused(message: str) -> ServiceError:
    return ServiceError("OTSAuthFailed", message)
