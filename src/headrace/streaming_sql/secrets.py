"""Which option values are secret, how they are kept out of files and messages, and ``${env:NAME}``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from headrace.errors import OptionError

NOT_STORED = "<secret, not stored>"
"""What stands in place of a secret wherever it would be kept or shown."""

_SECRET = re.compile(r"secret|token|passw(or)?d|passphrase|credential|key|jaas")
_HARMLESS = re.compile(
    r"(primary|foreign|partition|row|sort|include|group)keys?|key(columns?|fields?|space|(de)?serializer)"
    r"|keystore(location|type)|tokenendpointurl"
)
_ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")
# Taking shorter ones out of a text would make it unreadable and hide nothing.
_SHORTEST_HIDDEN = 4
_PASSWORD_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:\s]*:[^/@\s]+@", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Tell whether an option of this name holds a secret, such as ``access.key.secret``; not ``primaryKey``."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return bool(_SECRET.search(_HARMLESS.sub("", plain)))


def names_environment(value: str) -> bool:
    """Tell whether a value has ``${env:NAME}`` in it."""
    return bool(_ENVIRONMENT.search(value))


def is_clear_secret(name: str, value: str) -> bool:
    """Tell whether a secret stands in this option in clear, and not as ``${env:NAME}``."""
    if not value or names_environment(value):
        return False
    return is_secret_name(name) or bool(_PASSWORD_IN_URL.match(value))


def masked(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with `NOT_STORED` for each secret in clear."""
    return {name: NOT_STORED if is_clear_secret(name, value) else value for name, value in options.items()}


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return a text without these secrets."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def secret_values(options: Mapping[str, str]) -> set[str]:
    """Return the secrets that stand in options, or in the environment variables that these name."""
    expanded = {
        name: _ENVIRONMENT.sub(lambda match: os.environ.get(match[1], ""), value) for name, value in options.items()
    }
    return {
        value
        for name, value in expanded.items()
        if is_clear_secret(name, value) and value != NOT_STORED and len(value) >= _SHORTEST_HIDDEN
    }


def resolved(options: Mapping[str, str], where: str) -> dict[str, str]:
    """Return options as they are used: with the values of environment variables.

    Args:
        where: what the options belong to, for messages ("table order_source").

    Raises:
        OptionError: a variable is not set, or a secret was given in another session and not kept.
    """
    values: dict[str, str] = {}
    for name, value in options.items():
        if value == NOT_STORED:
            raise OptionError(
                f"option {name} of {where} is a secret that was given in clear, so it was not kept",
                remedy=f"set {name}='${{env:NAME}}' in its definition, leave it empty where the store looks in the "
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
