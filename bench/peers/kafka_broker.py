"""One Kafka broker on the loopback interface, in KRaft mode, from the jars of Maven Central."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.releases import jars, java

_START_SECONDS = 60.0
_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={logs}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
# Deleted topics leave the disk at once.
log.segment.delete.delay.ms=0
"""


@dataclass(frozen=True)
class Broker:
    """A running broker.

    Attributes:
        address: its host and port.
        logs: the directory of its topics.
    """

    address: str
    logs: Path

    def topic_directories(self, topic: str) -> list[Path]:
        """Return the directories of a topic's partitions."""
        return [each for each in self.logs.iterdir() if each.name.rpartition("-")[0] == topic]


@contextmanager
def kafka_broker(directory: Path) -> Iterator[Broker]:
    """Start a broker with an empty log in a directory, with 1 GB of memory."""
    directory.mkdir(parents=True)
    port, controller = _free_port(), _free_port()
    logs, file = directory / "logs", directory / "server.properties"
    file.write_text(_PROPERTIES.format(port=port, controller=controller, logs=logs))
    classpath = os.pathsep.join(map(str, jars("kafka_broker")))
    cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    # With "=", because one id in 64 begins with a hyphen.
    format_storage = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(file)]
    base = [java(), "-Xms1g", "-Xmx1g", "-cp", classpath]
    with (directory / "output").open("wb") as output:
        subprocess.run([*base, *format_storage], check=True, stdout=output)
        process = subprocess.Popen([*base, "kafka.Kafka", file], stdout=output, stderr=output)
        try:
            _wait_for(process, port, directory / "output")
            yield Broker(f"127.0.0.1:{port}", logs)
        finally:
            process.terminate()
            process.wait(60)


def _free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka has not started: {output.read_text()[-1000:]}") from None
            time.sleep(0.1)
