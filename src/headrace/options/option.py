"""`Option`: an option that users give as a text, in SQL or to Spark.

Spark compares the names of options without regard to case and passes them in lower case. headrace does the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.options.kinds import OptionKind, secret, text
from headrace.options.secrets import is_secret_name

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

    Raises:
        TypeError: a field has another type, or ``kind`` cannot read the default, or nothing in the name of a secret
            says that it is one: SQL, files and pages hide options by their names.
    """

    name: str
    meaning: str
    kind: OptionKind = text
    default: str | None = None
    used_by: tuple[str, ...] = EVERYWHERE

    def __post_init__(self) -> None:
        # A package of somebody else declares it, without a type checker perhaps.
        if not isinstance(self.name, str) or not self.name or not isinstance(self.meaning, str):
            raise TypeError(f"the name and the meaning of an option must be texts, and not {self.name!r}")
        if not isinstance(self.kind, OptionKind):
            raise TypeError(f"the kind of option {self.name} must be one of headrace.options.kinds")
        if self.kind is secret and not is_secret_name(self.name):
            raise TypeError(f"the name of the secret option {self.name} must contain password, secret, token or key")
        try:
            if self.default is not None:
                self.kind(self.default)
        except ValueError as error:
            raise TypeError(f"the default of option {self.name} is not valid: {error}") from None
