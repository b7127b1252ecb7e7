"""The endpoint's tokens and their users, from the environment or a TOML file.

A file has one ``[[tokens]]`` for each token::

    [[tokens]]
    token = "…"
    user = "alice"      # default: root
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import OptionError
from headrace.http.configuration_file import read_entries

TOKEN_VARIABLE = "HEADRACE_YT_TOKEN"
DEFAULT_USER = "root"
_FIELDS = {"token", "user"}
_VALID_TOKEN = "a text of visible ASCII characters, without spaces"


@dataclass(frozen=True)
class Token:
    """A token and its user."""

    token: str = field(repr=False)
    user: str = DEFAULT_USER


@dataclass(frozen=True)
class Configuration:
    """The directory and the users of an endpoint.

    Attributes:
        root: the directory of the embedded store.
        cluster_name: the value of ``//sys/@cluster_name``.
    """

    root: Path
    cluster_name: str
    tokens: tuple[Token, ...] = field(repr=False)

    @classmethod
    def load(
        cls,
        root: str | os.PathLike[str],
        file: str | os.PathLike[str] | None = None,
        *,
        cluster_name: str,
        environ: Mapping[str, str],
    ) -> Configuration:
        """Read the tokens from a file or, without a file, from the environment.

        Raises:
            OptionError: the file cannot be read or is invalid, or there is no token. The message never shows a token.
        """
        tokens = _from_environment(environ) if file is None else _from_file(Path(file))
        return cls(Path(root), cluster_name, tuple(tokens))

    def user(self, token: str) -> str | None:
        """Return the user of a token, None for an unknown token."""
        found = None
        # All tokens are compared, each in constant time, so that the duration does not depend on the token.
        for known in self.tokens:
            if hmac.compare_digest(known.token.encode(), token.encode()):
                found = known.user
        return found


def _from_environment(environ: Mapping[str, str]) -> list[Token]:
    token = environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise OptionError(
            "the endpoint has no token",
            received=f"{TOKEN_VARIABLE} is not set",
            remedy=f"set {TOKEN_VARIABLE} to a value of your own choice, or give --config; clients send it as YT_TOKEN",
        )
    return [Token(_checked(token, TOKEN_VARIABLE))]


def _from_file(file: Path) -> list[Token]:
    tokens = read_entries(file, "tokens", _FIELDS, _parsed)
    if len({token.token for token in tokens}) < len(tokens):
        raise OptionError("the configuration has a token twice", received=str(file))
    return tokens


def _parsed(entry: dict[str, Any], where: str) -> Token:
    token, user = entry.get("token"), entry.get("user", DEFAULT_USER)
    if not isinstance(token, str):
        raise OptionError(f"{where} needs token", valid=_VALID_TOKEN)
    if not isinstance(user, str) or not user:
        raise OptionError(f"{where}: user is a name", valid="a text that is not empty")
    return Token(_checked(token, where), user)


def _checked(token: str, where: str) -> str:
    if not token or not all(33 <= ord(letter) <= 126 for letter in token):
        raise OptionError(f"{where}: not a token", valid=_VALID_TOKEN)
    return token
