"""Machines with their own addresses, network cards and disks: network and mount namespaces, joined by a bridge."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_impossible() -> str | None:
    """Return why this machine can have no network namespaces; None if it can."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "the programs ip and unshare are not installed"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


@dataclass
class Host:
    """A machine. ``name`` is its namespace, ``directory`` the working directory of its processes."""

    name: str
    address: str
    directory: Path
    _processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], *, disks: Mapping[Path, Path] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on the machine.

        Args:
            disks: files and directories of this machine, with those that the process sees in their places.
            options: arguments of `subprocess.Popen`.
        """
        mounts = [f"mount --bind '{seen}' '{place}'" for place, seen in (disks or {}).items()]
        script = " && ".join([*mounts, 'exec "$@"'])
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", script, "sh", *command],
            cwd=self.directory,
            **options,
        )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kill all processes of the machine, as a power failure does."""
        listed = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False)
        for pid in listed.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for process in self._processes:
            process.wait(30)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
        self._processes.clear()

    def unplug(self) -> None:
        """Cut the network of the machine."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def plug_in(self) -> None:
        """Join the network again."""
        _ip("-n", self.name, "link", "set", "eth0", "up")


class Network:
    """Machines in one subnet. This process is in it, too, with `address`."""

    def __init__(self, count: int, directory: Path) -> None:
        # Other test processes of this machine have other subnets and names.
        number = os.getpid() % 250
        self.address = f"10.231.{number}.254"
        self._bridge = f"hrb{os.getpid()}"
        self.hosts = [
            Host(f"hr{os.getpid()}-{each}", f"10.231.{number}.{each}", directory / f"host{each}")
            for each in range(1, count + 1)
        ]

    def __enter__(self) -> Self:
        try:
            self._make()
        except subprocess.CalledProcessError:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for number, host in enumerate(self.hosts):
            host.directory.mkdir(parents=True)
            card = f"hv{os.getpid()}-{number}"
            _ip("netns", "add", host.name)
            _ip("link", "add", card, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", card, "master", self._bridge, "up")
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for host in self.hosts:
            host.kill()
        for words in (*(("netns", "del", host.name) for host in self.hosts), ("link", "del", self._bridge)):
            with suppress(subprocess.CalledProcessError):
                _ip(*words)
