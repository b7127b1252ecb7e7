"""Secret options: recognising them, and hiding them in files and messages; and the values of ``${env:NAME}``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from headrace.errors import OptionError

NOT_STORED = "<secret, not stored>"
"""The replacement of a secret in files and messages."""

_SECRET = re.compile(r"secret|token|passw(or)?d|passphrase|credential|key|jaas")
_HARMLESS = re.compile(
    r"(primary|foreign|partition|row|sort|include|group|map|join|timestamp|version)keys?"
    r"|key(columns?|fields?|space|words|ordering|ssubset|(de)?serializer)"
    r"|keystore(location|type)|tokenendpointurl"
)
_ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")
# Shorter values can be part of ordinary words.
_SHORTEST_HIDDEN = 4
# ``//user:password@host``, and ``password=…`` as a parameter of an address or connection string.
_PASSWORD_IN_URL = re.compile(r"//[^/@:\s]*:([^/\s]+)@")
_PARAMETER = re.compile(r"(?<![\w.-])([\w.-]+)=([^&;,\s'\"]+)")


def is_secret_name(name: str) -> bool:
    """Return whether an option of this name is secret: ``access.key.secret`` is, ``primaryKey`` is not."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return bool(_SECRET.search(_HARMLESS.sub("", plain)))


def names_environment(value: str) -> bool:
    """Return whether a value contains ``${env:NAME}``."""
    return bool(_ENVIRONMENT.search(value))


def is_clear_secret(name: str, value: str) -> bool:
    """Return whether an option contains a secret in clear text, not as ``${env:NAME}``."""
    if not value or names_environment(value):
        return False
    return is_secret_name(name) or bool(secrets_inside(value))


def secrets_inside(text: str) -> list[tuple[int, int]]:
    """Return the ranges of the passwords in an address or connection string."""
    found = [match.span(1) for match in _PASSWORD_IN_URL.finditer(text)]
    return found + [match.span(2) for match in _PARAMETER.finditer(text) if is_secret_name(match[1])]


def masked(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with `NOT_STORED` instead of each secret in clear text."""
    return {name: NOT_STORED if is_clear_secret(name, value) else value for name, value in options.items()}


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return a text with ``***`` instead of each secret."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def secret_values(options: Mapping[str, str]) -> set[str]:
    """Return the secrets in options, including the values of environment variables."""
    expanded = {
        name: _ENVIRONMENT.sub(lambda match: os.environ.get(match[1], ""), value) for name, value in options.items()
    }
    return {
        value
        for name, value in expanded.items()
        if is_clear_secret(name, value) and value != NOT_STORED and len(value) >= _SHORTEST_HIDDEN
    }


def resolved(options: Mapping[str, str], where: str) -> dict[str, str]:
    """Return options with the values of environment variables.

    Args:
        where: the owner of the options, for messages ("table order_source").

    Raises:
        OptionError: a variable is not set, or a secret of another session was not stored.
    """
    values: dict[str, str] = {}
    for name, value in options.items():
        if value == NOT_STORED:
            raise OptionError(
                f"option {name} of {where} was a secret in clear text, which is not stored",
                remedy=f"set {name}='${{env:NAME}}' in its definition, leave it empty if the store reads the "
                "environment, or run the definition again in this session",
            )
        for variable in _ENVIRONMENT.findall(value):
            if variable not in os.environ:
                raise OptionError(
                    f"option {name} of {where} needs an environment variable that is not set",
                    received=variable,
                    remedy=f"export {variable}=…",
                )
        values[name] = _ENVIRONMENT.sub(lambda match: os.environ[match[1]], value)
    return values
