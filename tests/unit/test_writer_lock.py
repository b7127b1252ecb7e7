"""The writer lock of an embedded store, as other processes see it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.stores.embedded import writer_lock

HOLD = """
import sys
from pathlib import Path
from headrace.stores.embedded.writer_lock import WriterLock
with WriterLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_long_wait_for_another_process_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_lock, "_SILENT_SECONDS", 0.05)
    path = tmp_path / "shop" / "writer.lock"
    path.parent.mkdir()
    said = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: said.set()  # type: ignore[method-assign]
    logging.getLogger("headrace").addHandler(handler)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"

            def release() -> None:
                said.wait(60)
                holder.communicate("")

            releasing = threading.Thread(target=release)
            releasing.start()
            with writer_lock.WriterLock(path):
                pass
            releasing.join()
    finally:
        logging.getLogger("headrace").removeHandler(handler)
    (record,) = [each for each in caplog.records if "waiting to write" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert f"waiting to write store {tmp_path / 'shop'}, which process {holder.pid}" in record.getMessage()


def test_a_free_lock_and_one_of_this_process_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer_lock, "_SILENT_SECONDS", 0.0)
    path = tmp_path / "writer.lock"
    with writer_lock.WriterLock(path), writer_lock.WriterLock(path):
        descriptor = os.open(path, os.O_RDONLY)
        assert writer_lock._holder(descriptor) is None
    os.close(descriptor)
    assert not caplog.records
