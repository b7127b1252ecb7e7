"""Signatures of Tablestore's requests and responses: version 2 (HMAC-SHA1) and version 4 (a derived key, HMAC-SHA256).

The signature of a request covers its path and every header that begins with ``x-ots-``, one of which is the MD5 of the
body. The signature of a response covers the headers and then the path, always with HMAC-SHA1 and the key of the
request. Header names are compared in lower case. All of this follows the official SDKs.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

API_VERSION = "2015-12-31"

PREFIX = "x-ots-"
DATE = "x-ots-date"
VERSION = "x-ots-apiversion"
ACCESS_KEY_ID = "x-ots-accesskeyid"
INSTANCE = "x-ots-instancename"
CONTENT_MD5 = "x-ots-contentmd5"
CONTENT_TYPE = "x-ots-contenttype"
REQUEST_ID = "x-ots-requestid"
STS_TOKEN = "x-ots-ststoken"
SIGNATURE_V2 = "x-ots-signature"
SIGNATURE_V4 = "x-ots-signaturev4"
SIGN_DATE = "x-ots-signdate"
SIGN_REGION = "x-ots-signregion"
AUTHORIZATION = "authorization"

_PRODUCT = "ots"
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d*)?Z?", re.ASCII)
_DAY = re.compile(r"\d{8}", re.ASCII)


@dataclass(frozen=True)
class Credentials:
    """The credentials of a client. An STS token has its own key id and secret, and expires with its session."""

    access_key_id: str
    access_key_secret: str = field(repr=False)
    sts_token: str | None = field(default=None, repr=False)


def content_md5(body: bytes) -> str:
    """Return the MD5 of a body in Base64, the value of its header."""
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def format_date(instant: datetime.datetime) -> str:
    """Return an instant in UTC with milliseconds; the Python SDK does not parse dates without them."""
    utc = instant.astimezone(datetime.UTC)
    return f"{utc:%Y-%m-%dT%H:%M:%S}.{utc.microsecond // 1000:03d}Z"


def parse_date(text: str) -> datetime.datetime | None:
    """Return the time of a date header in whole seconds; None if it is not a date.

    The fraction is ignored: the digits that the Go SDK writes there are not a fraction of the second.
    """
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return datetime.datetime.fromisoformat(match[1]).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None


def sign_request(path: str, headers: Mapping[str, str], secret: str, region: str | None = None) -> str:
    """Return the signature of a request.

    Args:
        path: the path of the URL, such as ``/GetRow``, without a query.
        headers: all headers of the request; a signature among them is ignored.
        secret: the secret of the access key.
        region: if given, the signature has version 4, and the headers have its date and region.
    """
    text = f"{path}\nPOST\n\n{_signed_headers(headers)}"
    if region is None:
        return _hmac_text(secret.encode(), text, "sha1")
    key = derived_key(secret, _lowered(headers).get(SIGN_DATE, ""), region)
    return _hmac_text(key, text + _PRODUCT, "sha256")


def derived_key(secret: str, sign_date: str, region: str) -> bytes:
    """Return the key of version 4 for one day (``yyyyMMdd``) and region, in Base64 as the algorithm uses it."""
    key = f"aliyun_v4{secret}".encode()
    for part in (sign_date, region, _PRODUCT, "aliyun_v4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return base64.b64encode(key)


def request_headers(
    path: str,
    body: bytes,
    credentials: Credentials,
    instance: str,
    *,
    region: str | None = None,
    now: datetime.datetime | None = None,
    api_version: str = API_VERSION,
) -> dict[str, str]:
    """Return the headers of a request, including its signature.

    Args:
        path: the path of the URL, such as ``/tunnel/list``.
        body: the body of the request.
        instance: the name of the instance.
        region: a region such as ``cn-hangzhou``; if given, the signature has version 4.
        now: the time of the request, with a time zone; by default the current time.
    """
    instant = (now or datetime.datetime.now(datetime.UTC)).astimezone(datetime.UTC)
    headers = {
        DATE: format_date(instant),
        VERSION: api_version,
        ACCESS_KEY_ID: credentials.access_key_id,
        INSTANCE: instance,
        CONTENT_MD5: content_md5(body),
    }
    if credentials.sts_token is not None:
        headers[STS_TOKEN] = credentials.sts_token
    if region is None:
        headers[SIGNATURE_V2] = sign_request(path, headers, credentials.access_key_secret)
    else:
        headers[SIGN_DATE] = f"{instant:%Y%m%d}"
        headers[SIGN_REGION] = region
        headers[SIGNATURE_V4] = sign_request(path, headers, credentials.access_key_secret, region)
    return headers


def verify_request(path: str, headers: Mapping[str, str], secret: str) -> bool:
    """Return whether a request has a valid signature: of version 4 if it has one, else of version 2.

    The key of version 4 must be that of the request's day, the day before or the day after, so a stolen older key is
    useless. The caller must check the date of the request itself.
    """
    lowered = _lowered(headers)
    if SIGNATURE_V4 in lowered:
        region = lowered.get(SIGN_REGION, "")
        signature = sign_request(path, lowered, secret, region)
        is_timely = _is_near(lowered.get(SIGN_DATE, ""), lowered.get(DATE, ""))
        return bool(region) and is_timely and _equal(lowered[SIGNATURE_V4], signature)
    return SIGNATURE_V2 in lowered and _equal(lowered[SIGNATURE_V2], sign_request(path, lowered, secret))


def _is_near(sign_date: str, date: str) -> bool:
    """Return whether the day of a signature (``yyyyMMdd``) is at most one day from a date header."""
    instant = parse_date(date)
    if instant is None or _DAY.fullmatch(sign_date) is None:
        return False
    try:
        day = datetime.date.fromisoformat(sign_date)
    except ValueError:
        return False
    return abs((day - instant.date()).days) <= 1


def response_authorization(
    path: str, headers: Mapping[str, str], credentials_id: str, secret: str, request_headers: Mapping[str, str]
) -> str:
    """Return the ``Authorization`` header of a response.

    Args:
        path: the path of the request.
        headers: the headers of the response.
        credentials_id: the id of the access key.
        request_headers: the headers of the request, which determine the version of its signature.
    """
    asked = _lowered(request_headers)
    if SIGNATURE_V4 in asked:
        key = derived_key(secret, asked.get(SIGN_DATE, ""), asked.get(SIGN_REGION, ""))
    else:
        key = secret.encode()
    return _authorization(path, headers, credentials_id, key)


def verify_response(
    path: str,
    headers: Mapping[str, str],
    credentials: Credentials,
    *,
    region: str | None = None,
    signdate: str | None = None,
) -> bool:
    """Return whether a response is signed with the key of its request.

    Args:
        region: the region of the request, if its signature had version 4.
        signdate: the day of the request, ``yyyyMMdd``; only with ``region``.
    """
    secret = credentials.access_key_secret
    key = secret.encode() if region is None else derived_key(secret, signdate or "", region)
    given = _lowered(headers).get(AUTHORIZATION, "")
    return _equal(given, _authorization(path, headers, credentials.access_key_id, key))


def _authorization(path: str, headers: Mapping[str, str], credentials_id: str, key: bytes) -> str:
    return f"OTS {credentials_id}:{_hmac_text(key, _signed_headers(headers) + path, 'sha1')}"


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers in the form for signatures: names in lower case, values without surrounding white space."""
    return {name.lower(): value.strip() for name, value in headers.items()}


def _signed_headers(headers: Mapping[str, str]) -> str:
    """Return ``name:value`` and a newline for every header that a signature covers, sorted by name."""
    return "".join(
        f"{name}:{value}\n"
        for name, value in sorted(_lowered(headers).items())
        if name.startswith(PREFIX) and name not in (SIGNATURE_V2, SIGNATURE_V4)
    )


def _hmac_text(key: bytes, text: str, digest: str) -> str:
    return base64.b64encode(hmac.digest(key, text.encode(errors="surrogateescape"), digest)).decode()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())
