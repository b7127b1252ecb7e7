"""Kills of a YTsaurus endpoint during writes of static tables: committed rows are in all tables, once."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from yt.wrapper import TablePath, YtClient

from tests.chaos.storm import KILLS, SEED
from tests.ytsaurus.interop.ytsaurus_server import serving

TABLES = ("//tmp/a", "//tmp/b")
PATIENCE = 120.0


class Writers:
    """Threads that append to all tables in transactions, on the current server, until they are stopped."""

    def __init__(self, count: int) -> None:
        self.url = ""
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(writer, count)) for writer in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, writer: int, count: int) -> None:
        for number in itertools.count(writer, count):
            if self._stopped.is_set():
                return
            try:
                self._write(number)
            except Exception:
                # The server was killed. Only the tables show whether the transaction was committed.
                time.sleep(0.05)

    def _write(self, number: int) -> None:
        retries = {"enable": False}
        config = {"proxy": {"retries": retries}, "write_retries": retries, "ping_failed_mode": "pass"}
        client = YtClient(proxy=self.url, token="only-for-tests", config=config)
        outer = client.start_transaction(timeout=600_000)
        with client.Transaction(transaction_id=outer, ping=False):
            for path in TABLES:
                inner = client.start_transaction(timeout=600_000)
                with client.Transaction(transaction_id=inner, ping=False):
                    client.write_table(TablePath(path, append=True), [{"n": number}])
                client.commit_transaction(inner)
        if number % 4 == 3:
            self.aborted.add(number)
            client.abort_transaction(outer)
        else:
            client.commit_transaction(outer)
            self.committed.add(number)


@pytest.mark.timeout(3600)
def test_kills_of_the_endpoint_leave_complete_transactions(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    writers = Writers(2)
    try:
        for kill in range(max(1, KILLS // 3)):
            with serving(tmp_path) as server:
                if not kill:
                    for path in TABLES:
                        server.client().create("table", path)
                writers.url = server.url
                if not kill:
                    writers.start()
                enough = len(writers.committed) + chance.randint(2, 10)
                deadline = time.monotonic() + PATIENCE
                while len(writers.committed) < enough:
                    assert time.monotonic() < deadline, "no transaction is committed"
                    time.sleep(0.01)
                time.sleep(chance.random() * 0.2)
                server.kill()
    finally:
        writers.stop()
    with serving(tmp_path) as server:
        client = server.client()
        first, second = (Counter(row["n"] for row in client.read_table(path)) for path in TABLES)
    assert first == second, SEED
    assert set(first.values()) == {1}, SEED
    assert writers.committed <= first.keys(), SEED
    assert not writers.aborted & first.keys(), SEED
