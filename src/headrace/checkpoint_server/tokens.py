"""Authentication by OAuth 2, in the form that Hadoop's client supports.

The server's secret is a refresh token. The client exchanges it for access tokens, and sends one with each request.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from urllib.parse import parse_qs

from headrace.checkpoint_server.protocol import Response

PATH = "/oauth2/token"
CLIENT_ID = "headrace"
MAX_REQUEST_BYTES = 8 << 10
# The client renews its token half a minute early.
LIFE_SECONDS = 3600
_GRACE_SECONDS = 60
# The oldest token above this number becomes invalid. Each of Hadoop's clients has one.
_MOST_TOKENS = 10_000


class Tokens:
    """The secret of a server, and the access tokens that it has issued."""

    def __init__(self) -> None:
        self.refresh_token = secrets.token_urlsafe(32)
        self._until: dict[str, float] = {}

    def __repr__(self) -> str:
        return "Tokens()"

    def exchange(self, body: bytes) -> Response:
        """Return the response to a token request: a form with the client's id and its refresh token."""
        form = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
        given = form.get("refresh_token", "").encode("latin-1", "replace")
        right = hmac.compare_digest(given, self.refresh_token.encode())
        if not right or form.get("grant_type") != "refresh_token" or form.get("client_id") != CLIENT_ID:
            return Response(401, b'{"error": "invalid_grant"}')
        now = time.monotonic()
        self._until = {token: until for token, until in self._until.items() if until > now}
        while len(self._until) >= _MOST_TOKENS:
            del self._until[next(iter(self._until))]
        token = secrets.token_urlsafe(32)
        self._until[token] = now + LIFE_SECONDS + _GRACE_SECONDS
        reply = {"access_token": token, "token_type": "bearer", "expires_in": LIFE_SECONDS}
        return Response(200, json.dumps(reply).encode())

    def accept(self, authorization: str) -> bool:
        """Return whether the header of a request has a valid access token."""
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and self._until.get(token, 0.0) > time.monotonic()
