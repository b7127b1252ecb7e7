"""The formats that are installed: the entry points of the group ``headrace.formats``. No other module lists them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.errors import OptionError
from headrace.formats.format import Format
from headrace.formats.headrace.source import HEADRACE
from headrace.formats.source import Source
from headrace.stores.opening import CheckpointScheme
from headrace.stores.registry import openings
from headrace.support import entry_points


def _sources() -> Iterator[tuple[str, type[Source]]]:
    owners: dict[str, str] = {}
    for name, source in entry_points.parts(entry_points.FORMATS, Source).items():
        found = getattr(source, "format", None)
        if not isinstance(found, Format):
            entry_points.refuse(entry_points.FORMATS, name, "its attribute format is no Format")
            continue
        owned = [f"format {found.name}"]
        if found.checkpoint_scheme is not None:
            owned.append(f"checkpoint scheme {found.checkpoint_scheme.name}")
        if entry_points.is_free(entry_points.FORMATS, name, owned, owners):
            yield found.name, source


_SOURCES: Mapping[str, type[Source]] = dict(_sources())
FORMATS: Mapping[str, Format] = {name: source.format for name, source in _SOURCES.items()}
"""The formats by name."""
DEFAULT_FORMAT = HEADRACE
"""The format where a user may leave the format out."""
CHECKPOINT_SCHEMES: Mapping[str, CheckpointScheme] = {
    scheme.name: scheme
    for scheme in (
        *(each.checkpoint_scheme for each in FORMATS.values()),
        *(each.checkpoint_scheme for each in openings()),
    )
    if scheme is not None
}
"""The schemes of checkpoints in a store, by name."""


def format_named(name: str) -> Format:
    """Return the format of a name, in any case; raise `OptionError` if there is none."""
    found = FORMATS.get(name.lower())
    if found is None:
        raise OptionError(
            "not a format of headrace",
            received=name,
            valid=tuple(FORMATS),
            remedy=", ".join(entry_points.failures(entry_points.FORMATS)) or None,
        )
    return found


def source_of(name: str, options: Mapping[str, str]) -> Source:
    """Return the source for one use of the format of a name.

    Raises:
        OptionError: there is no such format, or the text of an option is not valid.
    """
    return _SOURCES[format_named(name).name](options)


def checkpoint_scheme(name: str) -> CheckpointScheme:
    """Return the scheme of checkpoints in a store; raise `OptionError` if there is none of the name."""
    if name not in CHECKPOINT_SCHEMES:
        raise OptionError("not a scheme of checkpoints in a store", received=name, valid=tuple(CHECKPOINT_SCHEMES))
    return CHECKPOINT_SCHEMES[name]
