"""A fast start, and a fast end, of programs that need no Spark."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _RefusePandas(MetaPathFinder):
    """Makes an import of pandas fail."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ImportError("pandas is not needed", name=name)


def keep_pandas_out() -> None:
    """Let pyarrow work without pandas, if nothing has imported pandas yet.

    pyarrow imports pandas, if it is installed, when it creates its first value. That takes as long as everything else
    that a command does. pyarrow looks for pandas once; afterwards, other code can still import pandas, but this process
    cannot convert between the two. So only the program calls this, for commands that need no Spark.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder = _RefusePandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.scalar(0)
    finally:
        sys.meta_path.remove(finder)


def skip_last_collection() -> None:
    """Let Python end without a search for garbage, which takes as long as the import of numpy."""
    # DuckDB's binding reports each of its objects that is left.
    if "_duckdb" not in sys.modules:
        gc.freeze()
