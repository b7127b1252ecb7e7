"""The file with the secrets of those who may use an endpoint: TOML, one table for each of them."""

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
    """Read the entries of an array of tables, which has to be all that the file has.

    Args:
        file: the TOML file.
        name: of the array: ``tokens`` for ``[[tokens]]``.
        fields: what an entry may have.
        parse: makes something of an entry, given its place in words to begin messages with.

    Raises:
        OptionError: the file cannot be read or is not as it must be. Never shows what an entry has.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"cannot read the configuration: {error.strerror}", received=str(file)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # The parser's own message may quote a line with a secret; only the place is taken from it.
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
