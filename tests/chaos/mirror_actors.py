"""The workers of a storm around a mirror without Spark.

``python -m tests.chaos.mirror_actors worker DIRECTORY NUMBER`` copies until SIGTERM. The file ``address``, if it
exists, has the URL of the copy's store.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import headrace
from headrace.derived.mirror.worker import MirrorWorker
from tests.chaos.worker_actors import TIMEOUT


def mirror_of(directory: Path) -> MirrorWorker:
    address = directory / "address"
    return headrace.mirror_worker(
        headrace.open(directory / "store", synchronous="off"),
        "orders",
        headrace.open(address.read_text())
        if address.exists()
        else headrace.open(directory / "copies", create=True, synchronous="off"),
        "copy",
        batch_rows=10,
        timeout=TIMEOUT,
    )


def main() -> None:
    directory = Path(sys.argv[2])
    worker = mirror_of(directory)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run(lambda changes: (directory / f"running-{os.getpid()}").touch())


if __name__ == "__main__":
    main()
