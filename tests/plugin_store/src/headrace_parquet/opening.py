"""The addresses and options of the store. The store itself is imported when one is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import NotFoundError, OptionError
from headrace.options.kinds import one_of
from headrace.options.option import Option
from headrace.ports import Store
from headrace.stores.opening import Opening, StoreOption

_COMPRESSIONS = ("zstd", "snappy", "none")


def open_store(url: str | os.PathLike[str], options: Mapping[str, Any], create: bool = False) -> Store:
    """Return the store of a directory, ``parquet:///path``."""
    from headrace_parquet.store import ParquetStore

    directory = Path(str(url).removeprefix("parquet://"))
    compression = options.get("compression", "zstd")
    if compression not in _COMPRESSIONS:
        raise OptionError("unknown compression", received=repr(compression), valid=_COMPRESSIONS)
    if not directory.is_dir():
        if not create:
            raise NotFoundError("no such directory", received=str(directory), remedy="pass create=True")
        directory.mkdir(parents=True)
    return ParquetStore(directory, compression)


OPENING = Opening(
    what="a directory of Parquet files",
    form="parquet:///path",
    schemes=("parquet",),
    options=(
        StoreOption(
            "compression",
            Option("parquetCompression", "Parquet files: the compression", one_of(*_COMPRESSIONS), "zstd"),
            variable="PARQUET_COMPRESSION",
        ),
    ),
    open=open_store,
    environment=("PARQUET_",),
)
