"""The formats. No other module lists them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import OptionError
from headrace.formats.format import CheckpointScheme, Format
from headrace.formats.headrace.location import DATABASE_CHECKPOINTS
from headrace.formats.headrace.source import HeadraceSource
from headrace.formats.source import Source
from headrace.formats.tablestore.source import TablestoreSource
from headrace.formats.yt.source import YtSource

_SOURCES: tuple[type[Source], ...] = (HeadraceSource, TablestoreSource, YtSource)
FORMATS: Mapping[str, Format] = {source.format.name: source.format for source in _SOURCES}
"""The formats by name. The first is the default where a user may leave the format out."""
DEFAULT_FORMAT = _SOURCES[0].format
CHECKPOINT_SCHEMES: Mapping[str, CheckpointScheme] = {
    scheme.name: scheme
    for scheme in (*(each.checkpoint_scheme for each in FORMATS.values()), DATABASE_CHECKPOINTS)
    if scheme is not None
}
"""The schemes of checkpoints in a store, by name."""


def find_format(name: str) -> Format | None:
    """Return the format of a name, in any case; None if there is none."""
    return FORMATS.get(name.lower())


def format_named(name: str) -> Format:
    """Return the format of a name, in any case; raise `OptionError` if there is none."""
    found = find_format(name)
    if found is None:
        raise OptionError("not a format of headrace", received=name, valid=tuple(FORMATS))
    return found


def source_of(name: str, options: Mapping[str, str]) -> Source:
    """Return the source for one use of the format of a name.

    Raises:
        OptionError: there is no such format, or the text of an option is not valid.
    """
    found = format_named(name)
    return next(source for source in _SOURCES if source.format is found)(options)


def checkpoint_scheme(name: str) -> CheckpointScheme:
    """Return the scheme of checkpoints in a store; raise `OptionError` if no format has it."""
    if name not in CHECKPOINT_SCHEMES:
        raise OptionError("not a scheme of checkpoints in a store", received=name, valid=tuple(CHECKPOINT_SCHEMES))
    return CHECKPOINT_SCHEMES[name]
