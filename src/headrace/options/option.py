"""`Option`: an option that users give as a text, in SQL or to Spark.

Spark compares the names of options without regard to case and passes them in lower case. headrace does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.options.kinds import OptionKind, text

SOURCE, SINK, BATCH_READ, BATCH_WRITE = "stream read", "stream write", "batch read", "batch write"
EVERYWHERE = (SOURCE, SINK, BATCH_READ, BATCH_WRITE)


@dataclass(frozen=True)
class Option:
    """An option of a format.

    Attributes:
        name: the documented name.
        meaning: its description, for docs/options.md and for the error if it is missing.
        kind: how its text is read.
        default: the text that applies if the option is not set; None if there is none.
        used_by: the uses of the format that read the option.
    """

    name: str
    meaning: str
    kind: OptionKind = text
    default: str | None = None
    used_by: tuple[str, ...] = EVERYWHERE
