"""Files and static tables in tests: contents as lists of numbers, and commands on them in transactions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from headrace_ytsaurus.endpoint.cluster import Cluster
from tests.ytsaurus.unit.ytsaurus_cluster import bytes_of, call, rows_of

_names = itertools.count()


@dataclass(frozen=True)
class Content:
    """A table or file with a list of numbers, as rows or as lines."""

    cluster: Cluster
    kind: str
    path: str

    def write(self, *numbers: int, tx: str | None = None, append: bool = False) -> None:
        path = f"<append=%true>{self.path}" if append else self.path
        value: Any = [{"a": number} for number in numbers]
        if self.kind == "file":
            value = b"".join(b"%d\n" % number for number in numbers)
        call(self.cluster, f"write_{self.kind}", value, path=path, transaction_id=tx)

    def append(self, *numbers: int, tx: str | None = None) -> None:
        self.write(*numbers, tx=tx, append=True)

    def read(self, tx: str | None = None) -> list[int]:
        if self.kind == "file":
            return [int(line) for line in bytes_of(self.cluster, self.path, tx).split()]
        return [row["a"] for row in rows_of(self.cluster, self.path, tx)]

    def other(self, name: str) -> Content:
        return Content(self.cluster, self.kind, f"{self.path}_{name}")


def new_content(cluster: Cluster, kind: str) -> Content:
    """Create a table or a file with the numbers 1 and 2."""
    content = Content(cluster, kind, f"//tmp/{kind}_{next(_names)}")
    call(cluster, "create", type=content.kind, path=content.path)
    content.write(1, 2)
    return content


def new_path() -> str:
    """Return a path without a node."""
    return f"//tmp/t_{next(_names)}"


def call_in(content: Content, name: str, tx: str | None, *value: Any, **parameters: Any) -> None:
    call(content.cluster, name, *value, **parameters, transaction_id=tx)


def lock(content: Content, mode: str, tx: str | None) -> None:
    if tx is not None:
        call_in(content, "lock", tx, path=content.path, mode=mode)


def write(cluster: Cluster, path: str, *rows: Any, tx: str | None = None) -> None:
    call(
        cluster,
        "write_table",
        [row if isinstance(row, dict) else {"a": row} for row in rows],
        path=path,
        transaction_id=tx,
    )


def numbers(cluster: Cluster, path: str, tx: str | None = None) -> list[Any]:
    return [row["a"] for row in rows_of(cluster, path, tx)]
