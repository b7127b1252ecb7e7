"""The file with the secrets of an endpoint's users: TOML, with one table for each user."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import OptionError

_PLACE = re.compile(r"(?<=\()at [a-z0-9, ]+(?=\)$)")
_Entry = TypeVar("_Entry")


def read_entries(
    file: Path, name: str, fields: Collection[str], parse: Callable[[dict[str, Any], str], _Entry]
) -> list[_Entry]:
    """Read the entries of an array of tables. The file must contain nothing else.

    Args:
        file: the TOML file.
        name: the name of the array: ``tokens`` for ``[[tokens]]``.
        fields: the valid fields of an entry.
        parse: converts an entry, given a description of its place, with which messages begin.

    Raises:
        OptionError: the file cannot be read or is invalid. The message never shows a value of an entry.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read the configuration: {error.strerror}", received=str(file)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The parser's message may quote a line with a secret, so only the position is used.
        place = _PLACE.search(str(error))
        raise OptionError(
            "the configuration is not a TOML file", received=f"{file}{f', {place[0]}' if place else ''}"
        ) from None
    unknown = sorted(set(content) - {name})
    if unknown:
        raise OptionError("unknown entry in the configuration", received=unknown[0], valid=f"[[{name}]]")
    entries = content.get(name)
    if not isinstance(entries, list) or not entries:
        raise OptionError(f"the configuration has no {name}", received=str(file), valid=f"at least one [[{name}]]")
    parsed = []
    for number, entry in enumerate(entries, start=1):
        where = f"entry {number} of [[{name}]]"
        if not isinstance(entry, dict):
            raise OptionError(f"{where} is not a table")
        surplus = sorted(set(entry) - set(fields))
        if surplus:
            raise OptionError(f"{where} has an unknown field", received=surplus[0], valid=sorted(fields))
        parsed.append(parse(entry, where))
    return parsed
