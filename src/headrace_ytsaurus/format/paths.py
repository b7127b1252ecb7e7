"""Paths as values of options, in the forms that SPYT accepts."""

from __future__ import annotations

import re

from headrace.errors import OptionError
from headrace.options.kinds import OptionKind
from headrace_ytsaurus.wire.paths import PARTS, WHOLE, has_suffix

# Names of attributes, but not texts of other attributes.
_CHOICE = re.compile(rf"""[<;]\s*"?(?:{"|".join(sorted(PARTS))})"?\s*=""")
_ATTRIBUTES = re.compile(r"""\s*<(?:"(?:[^"\\]|\\.)*"|[^">])*>""")


def _ypath(text: str) -> str:
    path = text
    while match := _ATTRIBUTES.match(path):
        if _CHOICE.search(match[0]):
            raise OptionError("a path names a part of a table or queue", received=repr(text), valid=WHOLE)
        path = path[match.end() :]
    if not path.strip():
        raise ValueError
    if path.strip().startswith("//") and has_suffix(path):
        raise OptionError("a path names a part of a table or queue", received=repr(text), valid=WHOLE)
    return path.strip()


ypath = OptionKind("a path such as //home/project/queue", _ypath, name="path")
