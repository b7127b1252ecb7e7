"""Who may use the web page: the Host header, the password, sessions, and tokens of forms."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import urlsplit

from headrace.errors import OptionError
from headrace.ui.requests import Request

SHORTEST_PASSWORD = 8
SESSION_SECONDS = 12 * 3600
_MAX_SESSIONS = 1000
_MAX_FAILURES, _FAILURE_SECONDS = 10, 60.0
_MAX_CLIENTS = 10_000
_Value = TypeVar("_Value")


def is_loopback(host: str) -> bool:
    """Return whether an address to listen at is reached only from this machine."""
    bare = host.removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare.lower() == "localhost"


class Access:
    """The rules for requests.

    A page of another site can make a browser send requests here. The Host header shows names of other sites that
    resolve to this machine (DNS rebinding). A request that changes something needs a token that only pages of this
    server contain.

    Args:
        host: the address that the server listens at.
        password: the password; None only for loopback addresses.
        names: more names of this server that a Host header may have.

    Raises:
        OptionError: the password is too short, or missing for an address that other machines reach.
    """

    def __init__(self, host: str, password: str | None = None, names: Iterable[str] = ()) -> None:
        if password is None and not is_loopback(host):
            raise OptionError(
                "other machines can reach this address, so the page needs a password",
                received=host,
                remedy="set HEADRACE_UI_PASSWORD, or give --password-file",
            )
        if password is not None and len(password) < SHORTEST_PASSWORD:
            raise OptionError(
                "the password of the page is too short",
                received=f"{len(password)} characters",
                valid=f"at least {SHORTEST_PASSWORD} characters",
            )
        self._password = None if password is None else password.encode()
        own = () if is_loopback(host) else (socket.gethostname(), socket.getfqdn())
        self._names = {name.lower().rstrip(".") for name in ("localhost", host, *own, *names)}
        self._key = secrets.token_bytes(32)
        self._sessions: dict[str, float] = {}
        # By the address of the client: when wrong passwords came, and until when the right one is known to come.
        self._failures: dict[str, list[float]] = {}
        self._known: dict[str, float] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Access(password={'set' if self._password else 'none'})"

    @property
    def needs_password(self) -> bool:
        return self._password is not None

    def knows_host(self, header: str) -> bool:
        """Return whether a Host header names this server: by an address, or by one of its names."""
        try:
            name = urlsplit(f"//{header}").hostname
        except ValueError:
            return False
        if not name:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._names
        # A name that an attacker resolves to this machine is not an address.
        return True

    def permits(self, request: Request) -> bool:
        """Return whether a request has a session, or the password as bearer token."""
        if self._password is None:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self.check_password(token, request.client)
        with self._lock:
            return self._sessions.get(request.session, 0.0) > time.monotonic()

    def check_password(self, given: str, client: str) -> bool:
        """Return whether a text is the password.

        After several wrong ones from an address, none from there is for a while, unless the right one has come from
        there before. Other addresses are not affected.
        """
        if self._password is None:
            return False
        now, right = time.monotonic(), hmac.compare_digest(given.encode("utf-8", "replace"), self._password)
        with self._lock:
            failures = [at for at in self._failures.pop(client, ()) if at > now - _FAILURE_SECONDS]
            if right and (len(failures) < _MAX_FAILURES or self._known.get(client, 0.0) > now):
                self._known.pop(client, None)
                _put(self._known, client, now + SESSION_SECONDS)
                return True
            _put(self._failures, client, [*failures, now][-_MAX_FAILURES:])
            return False

    def open_session(self) -> str:
        """Return the id of a new session."""
        session, now = secrets.token_urlsafe(32), time.monotonic()
        with self._lock:
            self._sessions = {each: end for each, end in self._sessions.items() if end > now}
            while len(self._sessions) >= _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[session] = now + SESSION_SECONDS
        return session

    def close_session(self, session: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(session, None)

    def form_token(self, session: str) -> str:
        """Return the token that the forms of a session contain."""
        return hmac.new(self._key, session.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def is_own_form(self, request: Request) -> bool:
        """Return whether a page of this server in the same session sent a form."""
        origin = request.headers.get("origin")
        try:
            if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
                return False
        except ValueError:
            # Half of an IPv6 address.
            return False
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        given = request.form.get("form_token", "").encode("utf-8", "replace")
        return bool(request.session) and hmac.compare_digest(given, self.form_token(request.session).encode())


def is_foreign(request: Request) -> bool:
    """Return whether a page of another site has sent a request, other than by a link that a person follows."""
    if request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return False
    return request.headers.get("sec-fetch-mode") != "navigate" or request.headers.get("sec-fetch-dest") != "document"


def _put(values: dict[str, _Value], client: str, value: _Value) -> None:
    """Remember a value of a client as the newest, and forget the oldest beyond a limit."""
    values[client] = value
    while len(values) > _MAX_CLIENTS:
        del values[next(iter(values))]


def cookie_name(port: int) -> str:
    """Return the name of the session's cookie. Browsers send a cookie to all ports of a host."""
    return f"headrace_{port}"
