"""The HTTP client of the store: signed requests, persistent connections, checked responses, retries and errors."""

from __future__ import annotations

import datetime
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import certifi
import urllib3
from google.protobuf.message import DecodeError, Message
from urllib3 import exceptions

import headrace
from headrace.errors import HeadraceError, OptionError, StoreBusyError, StoreError
from headrace.support.retries import Retries
from headrace_tablestore.store.failures import failure_of
from headrace_tablestore.wire import signatures
from headrace_tablestore.wire.errors import ServiceError, parse
from headrace_tablestore.wire.limits import CLOCK_SKEW
from headrace_tablestore.wire.signatures import Credentials

Answer = TypeVar("Answer", bound=Message)

VALID_ENDPOINT = "http(s)://host or http(s)://host:port, nothing after it"

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)
_CONNECTION = re.compile(r"\w+\(host=.*?\): ")
_HEADER_TEXT = re.compile(r"[\x21-\x7e]+", re.ASCII)
# These requests may be repeated. A repeated connect leaves a client that times out.
_REPEATABLE = frozenset(
    {
        "/BatchGetRow",
        "/ComputeSplitPointsBySize",
        "/DescribeTable",
        "/GetRange",
        "/GetRow",
        "/ListTable",
        "/tunnel/checkpoint",
        "/tunnel/connect",
        "/tunnel/describe",
        "/tunnel/getcheckpoint",
        "/tunnel/getrpo",
        "/tunnel/getrpobyoffset",
        "/tunnel/heartbeat",
        "/tunnel/list",
        "/tunnel/readrecords",
        "/tunnel/schedule",
        "/tunnel/shutdown",
    }
)
_REQUIRED = (signatures.CONTENT_MD5, signatures.REQUEST_ID, signatures.DATE, signatures.CONTENT_TYPE)


@dataclass(frozen=True)
class Patience:
    """How long a call waits, in seconds.

    Attributes:
        connect: for a connection.
        read: for an answer, each time that the request is sent.
        total: from the first try to the last retry. The last retry still has its own time for the answer.
        first_pause: the first pause, see `Retries`.
        first_busy_pause: the first pause after the service reported that it is too busy.
        longest_pause: the longest pause between two tries.
    """

    connect: float = 10.0
    read: float = 50.0
    total: float = 60.0
    first_pause: float = 0.1
    first_busy_pause: float = 0.5
    longest_pause: float = 3.0

    def retries(self) -> Retries:
        """Return the retries of a call that begins now."""
        return Retries(self.total, first_pause=self.first_pause, longest_pause=self.longest_pause)


class _UnansweredError(Exception):
    """No response, or a damaged one. ``sent`` is whether the service may have received the request."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


class TablestoreConnection:
    """Calls operations of one instance. Threads can share it; a forked process opens its own connections.

    It can be pickled, with the settings and the credentials.
    """

    def __init__(
        self,
        endpoint: str,
        instance: str,
        credentials: Credentials,
        *,
        region: str | None = None,
        patience: Patience | None = None,
        pool_size: int = 32,
    ) -> None:
        """Save the settings, without a connection.

        Args:
            endpoint: ``https://host[:port]``, or ``http`` on a trusted network.
            instance: the name of the instance.
            credentials: the access key.
            region: such as ``cn-hangzhou``; requests are then signed by version 4.
            patience: the time limits of calls.
            pool_size: most concurrent calls; further calls wait.

        Raises:
            OptionError: an argument is invalid. The message never contains a secret.
        """
        self.endpoint = _checked_endpoint(endpoint)
        self.instance = _checked_text("the name of the instance", instance)
        # No message shows any of these values: users may have swapped them.
        for name, value in (("access_key_id", credentials.access_key_id), ("sts_token", credentials.sts_token)):
            if value is not None and not _HEADER_TEXT.fullmatch(value):
                raise OptionError(f"{name} must be printable text without spaces")
        if not credentials.access_key_secret:
            raise OptionError("access_key_secret is empty")
        self.region = None if region is None else _checked_text("region", region)
        self._credentials = credentials
        self._patience = patience or Patience()
        self._pool_size = pool_size
        self._pool: tuple[int, urllib3.PoolManager] | None = None

    def __repr__(self) -> str:
        return f"<Connection to {self.instance} at {self.endpoint}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}

    def call(
        self, operation: str, request: Message, response_type: type[Answer], *, repeatable: bool | None = None
    ) -> Answer:
        """Send a request and return the response; retry within the time limit.

        Args:
            operation: ``GetRow``, or a path such as ``/tunnel/list``.
            response_type: the type of the response.
            repeatable: whether the request may be executed twice. By default reads and idempotent calls of the tunnel
                service may. Pass True for unconditional puts.

        Raises:
            ServiceError: the service rejected the request. It is also a headrace error, see `failure_of`.
            StoreBusyError: the service was too busy, or did not respond, until the time limit.
            StoreError: a request that may not be repeated was sent, and its result is unknown; or the response does
                not come from the service.
        """
        path = operation if operation.startswith("/") else f"/{operation}"
        may_repeat = path in _REPEATABLE if repeatable is None else repeatable
        body = request.SerializeToString()
        retries = self._patience.retries()
        while True:
            try:
                return self._send(path, body, response_type)
            except (ServiceError, _UnansweredError) as failure:
                busy = False
                if isinstance(failure, ServiceError):
                    again = failure.may_pass(repeatable=may_repeat)
                    # A busy service has not begun the request, so any request may be repeated.
                    busy = failure.may_pass(repeatable=False)
                else:
                    again = may_repeat or not failure.sent
                first_pause = self._patience.first_busy_pause if busy else None
                if not again or not retries.wait(f"Tablestore: {path}: {failure}", first_pause=first_pause):
                    raise self._final(failure, path, retried=again) from None

    def close(self) -> None:
        """Close the connections of this process; a later call opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and pool[0] == os.getpid():
            pool[1].clear()

    # -- one request --------------------------------------------------------------------------------

    def _send(self, path: str, body: bytes, response_type: type[Answer]) -> Answer:
        """Send a request once. Headers contain the time, so each attempt is signed again."""
        headers = signatures.request_headers(path, body, self._credentials, self.instance, region=self.region)
        status, answered, content = self._exchange(path, headers, body)
        given = answered.get(signatures.CONTENT_MD5)
        if given is not None and given.strip() != signatures.content_md5(content):
            raise _UnansweredError("the answer was damaged in transit", sent=True)
        if status != 200:
            raise parse(status, answered, content)
        if not path.startswith("/tunnel/"):
            # Answers of the tunnel service need not be signed.
            self._check_origin(path, headers, answered)
        try:
            return response_type.FromString(content)
        except DecodeError:
            raise StoreError(
                f"the answer to {path} cannot be read", received=f"{len(content)} bytes", remedy=_WRONG_PEER
            ) from None

    def _exchange(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return the status, headers with lower-case names, and body of the answer."""
        try:
            response = self._pools().urlopen(
                "POST",
                self.endpoint + path,
                body=body,
                headers={**headers, "User-Agent": f"headrace/{headrace.__version__}"},
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=self._patience.connect, read=self._patience.read),
                pool_timeout=self._patience.read,
                decode_content=False,
            )
        except (exceptions.NewConnectionError, exceptions.ConnectTimeoutError) as error:
            raise _UnansweredError(f"no connection to {self.endpoint}: {_reason(error)}", sent=False) from error
        except exceptions.EmptyPoolError as error:
            raise _UnansweredError(f"all {self._pool_size} connections are in use", sent=False) from error
        except exceptions.ReadTimeoutError as error:
            raise _UnansweredError(f"no answer within {self._patience.read:g} seconds", sent=True) from error
        except exceptions.HTTPError as error:
            lasting = _tls_failure(self.endpoint, error) if isinstance(error, exceptions.SSLError) else None
            if lasting is not None:
                raise lasting from error
            raise _UnansweredError(f"the connection broke: {_reason(error)}", sent=True) from error
        return response.status, {name.lower(): value for name, value in response.headers.items()}, response.data

    def _check_origin(self, path: str, asked: Mapping[str, str], answered: Mapping[str, str]) -> None:
        """Check that a response of the table API comes from the service, like the official SDKs.

        Raises:
            StoreError: a header is missing, the signature is wrong, or the response is too old.
        """
        missing = [name for name in _REQUIRED if name not in answered]
        if missing:
            raise StoreError(
                f"the answer to {path} is not Tablestore's", received=f"no {', '.join(missing)}", remedy=_WRONG_PEER
            )
        signed = signatures.verify_response(
            path, answered, self._credentials, region=self.region, signdate=asked.get(signatures.SIGN_DATE)
        )
        if not signed:
            raise StoreError(f"the answer to {path} is not signed with the access key", remedy=_WRONG_PEER)
        date = signatures.parse_date(answered[signatures.DATE])
        now = datetime.datetime.now(datetime.UTC)
        if date is None or abs((now - date).total_seconds()) > CLOCK_SKEW:
            raise StoreError(
                f"the answer to {path} is of another time",
                received=repr(answered[signatures.DATE]),
                valid=f"within {CLOCK_SKEW // 60} minutes of {signatures.format_date(now)}",
                remedy="correct this machine's clock",
            )

    def _final(self, failure: ServiceError | _UnansweredError, path: str, *, retried: bool) -> HeadraceError:
        """Return the error of a call after its last try."""
        if isinstance(failure, ServiceError):
            return failure_of(failure, path, retried=retried)
        if retried:
            return StoreBusyError(
                f"Tablestore did not answer {path} for {self._patience.total:g} seconds", received=str(failure)
            )
        return StoreError(
            f"it is unknown whether Tablestore executed {path}",
            received=str(failure),
            remedy="check the outcome before you repeat it",
        )

    def _pools(self) -> urllib3.PoolManager:
        """Return this process's connections.

        A forked process must not use the connections of its parent. A lock is not used: a fork could leave it locked.
        If two threads create a pool at the same time, the connections of one are closed after its call.
        """
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            pool = (
                os.getpid(),
                urllib3.PoolManager(num_pools=1, maxsize=self._pool_size, block=True, ca_certs=certifi.where()),
            )
            self._pool = pool
        return pool[1]


_WRONG_PEER = "check the endpoint, and the proxies between it and this machine"


def _checked_endpoint(endpoint: str) -> str:
    """Return an endpoint without a trailing slash."""
    if "@" in endpoint:
        raise OptionError(
            "an endpoint cannot contain a user or password", remedy="pass access_key_id and access_key_secret instead"
        )
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError:
        raise OptionError("the endpoint is not an address", valid=VALID_ENDPOINT) from None
    rest = parts.path not in ("", "/") or parts.query or parts.fragment
    host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
    if parts.scheme not in ("http", "https") or rest or not _HOST.fullmatch(host):
        raise OptionError(
            "the endpoint is not an address", received=repr(endpoint.partition("?")[0]), valid=VALID_ENDPOINT
        )
    return f"{parts.scheme}://{parts.netloc}"


def _checked_text(what: str, text: str) -> str:
    """Return a text that is valid in a header."""
    if not _HEADER_TEXT.fullmatch(text):
        raise OptionError(f"{what} must be printable text without spaces", received=repr(text))
    return text


def _tls_failure(endpoint: str, error: exceptions.SSLError) -> HeadraceError | None:
    """Return the error for a permanent TLS failure; None for a connection that broke."""
    causes = [part for part in (error, *error.args) if isinstance(part, ssl.SSLError)]
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return StoreError(f"the certificate of {endpoint} is not trusted", received=_reason(error), remedy=_WRONG_PEER)
    if any(cause.reason == "WRONG_VERSION_NUMBER" for cause in causes):
        return StoreError(
            f"{endpoint} does not speak TLS",
            received=_reason(error),
            remedy="for an endpoint of your own without TLS, the address begins with tablestore+http://",
        )
    return None


def _reason(error: Exception) -> str:
    """Return the text of an error without urllib3's prefix, the connection."""
    return _CONNECTION.sub("", str(error))[:300]
