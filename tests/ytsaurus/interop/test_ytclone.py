"""ytclone, a program that copies tables, files and documents between YTsaurus and S3, against the endpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from yt.wrapper import YtClient

from tests.interop.programs import installed_with_pip
from tests.interop.simple_s3 import serving_s3
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

PATIENCE = 120.0
FINISHED = re.compile(r"copy_finished completed=(\d+) skipped=(\d+) failed=(\d+)")


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed_with_pip("ytclone==0.1.33")


@pytest.fixture
def s3() -> Iterator[str]:
    with serving_s3() as address:
        yield address


def test_a_directory_is_copied_to_s3_and_back(
    packages: Path, s3: str, yt_server: YtServer, client: YtClient, home: str
) -> None:
    schema = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "s", "type": "string"}]
    client.create("map_node", f"{home}/from/inner", recursive=True)
    client.create("table", f"{home}/from/table", attributes={"schema": schema})
    client.write_table(f"{home}/from/table", [{"k": number, "s": "x" * number} for number in range(100)])
    client.write_table(f"{home}/from/inner/plain", [{"a": 1}, {"b": [None, {"c": 1.5}]}])
    client.write_file(f"{home}/from/file", b"content")
    client.create("document", f"{home}/from/document", attributes={"value": {"a": [1]}})
    client.set(f"{home}/from/@note", "note")

    def copied(source: str, target: str) -> tuple[str, ...]:
        """Return the numbers of nodes that were copied, skipped and failed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(packages),
            "YT_PROXY": yt_server.url,
            "YT_TOKEN": TOKEN,
            "S3_ENDPOINT": s3,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }
        command = [sys.executable, "-m", "ytclone", source, target]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        found = FINISHED.search(done.stdout + done.stderr)
        assert found is not None, done.stdout + done.stderr
        return found.groups()

    assert copied(f"{home}/from", "s3://bucket/kept") == ("6", "0", "0")
    assert copied(f"{home}/from", "s3://bucket/kept") == ("0", "6", "0")
    archive = f"s3://bucket/kept{home.removeprefix('/')}/from"
    assert copied(archive, f"{home}/to") == ("6", "0", "0")
    # A node is complete as long as its content has the revision that the program has noted in an attribute.
    assert copied(archive, f"{home}/to") == ("0", "6", "0")
    for name in ("table", "inner/plain"):
        source, target = (list(client.read_table(f"{home}/{side}/{name}")) for side in ("from", "to"))
        assert source == target != []
    assert client.read_file(f"{home}/to/file").read() == b"content"
    assert (client.get(f"{home}/to/document"), client.get(f"{home}/to/@note")) == ({"a": [1]}, "note")
    assert client.get(f"{home}/to/table/@schema") == client.get(f"{home}/from/table/@schema")
