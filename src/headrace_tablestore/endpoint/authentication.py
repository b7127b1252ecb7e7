"""Authentication of requests by their headers, before their bodies are read, and signed headers of responses."""

from __future__ import annotations

import datetime
import hmac
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.http.unpacking import (
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
from headrace_tablestore.endpoint.configuration import INSTANCE_NAMES, Configuration
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import CLOCK_SKEW, MAX_BODY_BYTES, is_instance_name
from headrace_tablestore.wire.signatures import (
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
_REQUIRED = (DATE, VERSION, ACCESS_KEY_ID, INSTANCE, CONTENT_MD5)


@dataclass(frozen=True)
class Caller:
    """The access key that signed a request, and the instance of the request."""

    credentials: Credentials
    instance: str


def authenticate(path: str, headers: Mapping[str, str], configuration: Configuration) -> Caller:
    """Check the signature and the date of a request, and that its key may use its instance.

    Args:
        headers: values by name in lower case.

    Raises:
        ServiceError: OTSParameterInvalid for a missing header, otherwise OTSAuthFailed.
    """
    for name in _REQUIRED:
        if not headers.get(name):
            raise invalid("a header is missing", received=name)
    key = configuration.keys.get(headers[ACCESS_KEY_ID].strip())
    if key is None:
        raise _refused("The AccessKeyID does not exist.")
    if not verify_request(path, headers, key.credentials.access_key_secret):
        raise _refused("Signature mismatch.")
    date = parse_date(headers[DATE])
    if date is None:
        raise _refused("The header x-ots-date is not a date.")
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
    """Yield the message in a body, after checking its MD5. An inflated message takes its bytes from a budget.

    Raises:
        ServiceError: OTSAuthFailed for a wrong MD5; OTSRequestBodyTooLarge; OTSServerBusy; OTSParameterInvalid.
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


def signed_headers(
    path: str, request_id: str, body: bytes, caller: Caller | None, request_headers: Mapping[str, str]
) -> dict[str, str]:
    """Return the headers of a response. Without a caller it is not signed: there is no key to sign it with."""
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
