"""The checkpoint of a stream that names none: a directory of the store that the stream writes, under its name.

The directory has a record of its stream: the tables and queues that the stream writes, and its definition. The record
is created atomically before the first batch. A stream with another record is refused, so that two streams of one name
never share a checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, UnsupportedError
from headrace.formats.checkpoint_locations import checkpoint_text, parse_location
from headrace.ports import Files, Store

RECORD = "stream.json"
# The characters that a name keeps. The others are valid in no path of a checkpoint, or have a meaning there.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")


def given_checkpoint(checkpoint: str | os.PathLike[str] | None, name: str | None) -> str | None:
    """Return the checkpoint that a user names, as a text; None for the default one.

    Args:
        name: the stream's name, without which there is no default.

    Raises:
        OptionError: the checkpoint is invalid, or both are missing.
    """
    if checkpoint is not None:
        return checkpoint_text(checkpoint)
    _check_name(name)
    return None


def default_checkpoint(store: Store, name: str | None) -> str:
    """Return the location of the checkpoint of a stream that writes a store and names no checkpoint.

    Args:
        name: the stream's name. Upper and lower case are the same, as in SQL.

    Raises:
        OptionError: the stream has no name.
        UnsupportedError: the store has no files.
    """
    checked = _check_name(name)
    if not store.capabilities.files:
        raise UnsupportedError(
            f"the store of stream {checked} has no files, so it cannot keep the stream's checkpoint",
            received=store.url,
            remedy="name a checkpoint location: checkpoint=… in Python, OPTIONS (checkpointLocation = '…') in SQL",
        )
    return f"headrace://{store.checkpoint_directory()}/{_encoded(checked.lower())}"


def record_stream(
    store: Store, location: str, name: str | None, writes: Sequence[str], definition: str, *, replace: bool = False
) -> None:
    """Record a stream in its default checkpoint, or check that the checkpoint has the record of this stream.

    A stream that has begun no batch, because its start failed, is replaced.

    Args:
        location: the location that `default_checkpoint` returned.
        writes: the tables and queues that the stream writes.
        definition: a text that is the same as long as the stream is the same; empty if it is unknown.
        replace: whether the stream may have had another definition.

    Raises:
        AlreadyExistsError: the directory is the checkpoint of another stream.
    """
    parsed = parse_location(location)
    assert parsed is not None
    files = store.files()
    path = f"{parsed.path}/{RECORD}"
    wanted = {"writes": sorted(writes), "definition": definition}
    found = files.read(path)
    if found is None and files.status(f"{parsed.path}/metadata") is None:
        try:
            files.write(path, json.dumps(wanted).encode())
            return
        except AlreadyExistsError:
            # Another process has started a stream of this name in the meantime.
            found = files.read(path)
    if found is None:
        raise _taken(location, name, "it was started with an explicit checkpoint location")
    recorded = json.loads(found)
    same = replace and recorded["writes"] == wanted["writes"]
    if recorded != wanted and (same or not _has_batches(files, parsed.path)):
        files.write(path, json.dumps(wanted).encode(), overwrite=True)
        return
    if recorded != wanted:
        other = recorded["writes"] != wanted["writes"]
        raise _taken(location, name, f"it writes {', '.join(recorded['writes'])}" if other else "its query differs")


def _has_batches(files: Files, checkpoint: str) -> bool:
    """Return whether Spark has planned a batch."""
    try:
        return bool(files.list(f"{checkpoint}/offsets"))
    except NotFoundError:
        return False


def _taken(location: str, name: str | None, how: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"the store has the checkpoint of another stream {name}: {how}",
        received=location,
        remedy=f"give this stream another name; or, to continue from that checkpoint, name it: checkpoint={location!r} "
        f"in Python, OPTIONS (checkpointLocation = {location!r}) in SQL",
    )


def _check_name(name: str | None) -> str:
    if name is None or not isinstance(name, str) or not name.strip():
        raise OptionError(
            "a stream without a name needs a checkpoint location",
            valid="a name: the checkpoint is then kept in the store that the stream writes, under this name; or a "
            "lasting directory that no other stream uses",
            remedy="pass name='…', or checkpoint='headrace:///checkpoints/…' for a directory in the store",
        )
    return name


def _encoded(name: str) -> str:
    """Return a name as one part of a path; different names have different results."""
    return "".join(
        each if each in _PLAIN else "".join(f"={byte:02x}" for byte in each.encode("utf-8", "surrogatepass"))
        for each in name
    )
