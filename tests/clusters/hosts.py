"""Hosts of a cluster on one machine, each with its own addresses, processes, host name and files.

A host is a set of Linux namespaces: network, mounts, processes and host name. All hosts are on one network, whose
switch is a bridge in a namespace of its own, so the machine's own network does not change. Each host sees its own
directory at one common path, `Network.home`: the same path is another disk on another host.

The namespaces end with the process that holds them, which ends when the tests do, in any way.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PREFIX = "10.77.0"
_MASK = 24
_LINK = Path(__file__).with_name("link.py")
# Not below `TMPDIR`; hosts need root.
_JAVA_PROCESSES = "/tmp/hsperfdata_root"
# Several programs start at once on a busy machine.
_PATIENCE = 180.0


@functools.cache
def missing() -> str | None:
    """Return why this machine cannot have hosts; None if it can."""
    programs = [name for name in ("ip", "mount", "nsenter", "unshare") if shutil.which(name) is None]
    if programs:
        return f"programs are not installed: {', '.join(programs)}"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "ip", "link", "set", "lo", "up"],
        capture_output=True,
        text=True,
    )
    if tried.returncode:
        return f"namespaces cannot be made here, for which root is needed: {tried.stderr.strip()}"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", "br0", "type", "bridge"], capture_output=True, text=True
    )
    if tried.returncode:
        return f"this kernel has no network bridges: {tried.stderr.strip()}"
    return None if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "/dev/net/tun cannot be opened"


def wait_until(condition: Callable[[], bool], what: str, seconds: float = _PATIENCE) -> None:
    """Wait until a condition holds; raise TimeoutError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Network:
    """A switch and the hosts that are connected to it.

    Args:
        directory: the directory for the files of all hosts.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self._names = directory / "hosts-file"
        self._names.write_text("127.0.0.1 localhost\n")
        self.hosts: dict[str, Host] = {}
        self._switch = _Holder(["--net"], "ip link add switch type bridge && ip link set switch up")

    def add(self, name: str) -> Host:
        """Connect a new host. Other hosts know it by its name."""
        address = f"{PREFIX}.{len(self.hosts) + 10}"
        own = self.directory / name
        own.mkdir()
        # Before the host mounts it. Hosts that exist see the new line: it is the same file.
        with self._names.open("a") as names:
            names.write(f"{address} {name}\n")
        holder = _Holder(
            ["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"],
            f"hostname {name} && mount --bind {own} {self.home} && mount --bind {self._names} /etc/hosts"
            # No name server: a question to that of the machine would wait for an answer that cannot come.
            " && mount --bind /dev/null /etc/resolv.conf"
            # Java names files of a directory by its process ids, which are those of other hosts, too, and prints a
            # warning to the standard output for a file that another process has locked.
            f" && mkdir -p {_JAVA_PROCESSES} && mount -t tmpfs -o mode=755 tmpfs {_JAVA_PROCESSES}"
            " && ip link set lo up",
        )
        self.hosts[name] = host = Host(self, name, address, own, holder, f"port{len(self.hosts)}")
        return host

    def on_switch(self, *command: str) -> None:
        """Run a command in the namespace of the switch."""
        _check(self._switch.entering("--net"), command)

    def start_on_switch(self, *command: str) -> subprocess.Popen[str]:
        """Start a process in the namespace of the switch, with pipes for its input and output."""
        return subprocess.Popen(
            [*self._switch.entering("--net"), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """Power all hosts off, and remove the network."""
        for host in self.hosts.values():
            host.close()
        self._switch.close()


class Host:
    """One host. `Network.add` creates it.

    Attributes:
        address: its address in the network.
        own: its directory as the tests see it; the host sees it at `Network.home`.
    """

    def __init__(self, network: Network, name: str, address: str, own: Path, holder: _Holder, port: str) -> None:
        self.network, self.name, self.address, self.own = network, name, address, own
        self._holder, self._port = holder, port
        self._started: list[subprocess.Popen[bytes]] = []
        self._link = network.start_on_switch(sys.executable, "-I", str(_LINK), port, f"{port}h")
        assert self._link.stdout is not None
        if self._link.stdout.readline() != "ready\n":
            raise RuntimeError(f"the link of host {name} did not start")
        network.on_switch("ip", "link", "set", port, "master", "switch", "up")
        network.on_switch("ip", "link", "set", f"{port}h", "name", "eth0", "netns", str(holder.pid))
        self.run(["ip", "address", "add", f"{address}/{_MASK}", "dev", "eth0"])
        self.run(["ip", "link", "set", "eth0", "up"])
        (own / "tmp").mkdir()

    @property
    def home(self) -> Path:
        """The host's directory, as its processes see it."""
        return self.network.home

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of the host's processes: nothing of the tests' own, except where Java is."""
        kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "LANG": "C.UTF-8",
            **(variables or {}),
        }

    def start(
        self, command: Sequence[object], variables: Mapping[str, str] | None = None, log: str = "log"
    ) -> subprocess.Popen[bytes]:
        """Start a process in the host's directory. Its output is appended to the file ``log`` there."""
        with (self.own / log).open("ab") as output:
            started = subprocess.Popen(
                [*self._entering(), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(variables),
            )
        self._started.append(started)
        return started

    def talk(
        self, command: Sequence[object], variables: Mapping[str, str] | None = None, log: str = "log"
    ) -> subprocess.Popen[str]:
        """Start a process with pipes for its input and output. Its errors are appended to the file ``log``."""
        with (self.own / log).open("ab") as errors:
            return subprocess.Popen(
                [*self._entering(), *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self.environment(variables),
            )

    def run(
        self,
        command: Sequence[object],
        variables: Mapping[str, str] | None = None,
        *,
        check: bool = True,
        timeout: float = 300.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a process in the host's directory to its end; with ``check`` it must succeed."""
        done = subprocess.run(
            [*self._entering(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment(variables),
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {command[0]} failed: {done.stderr[-6000:]}")
        return done

    def log(self, name: str = "log") -> str:
        """Return the output of the processes that `start` has started."""
        path = self.own / name
        return path.read_text(errors="replace") if path.exists() else ""

    def listens(self, port: int) -> bool:
        """Return whether a process of the host listens at a TCP port, read from the kernel's table of sockets."""
        tables = "".join(Path(f"/proc/{self._holder.pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
        # Address and port of the socket, those of the peer, and the state: 0A is LISTEN.
        return any(f[1].endswith(f":{port:04X}") and f[3] == "0A" for f in map(str.split, tables.splitlines()))

    def bind(self, address: str) -> None:
        """Give the host another address, also in the table of names. Its connections break."""
        self.run(["ip", "address", "flush", "dev", "eth0"])
        self.run(["ip", "address", "add", f"{address}/{_MASK}", "dev", "eth0"])
        names = self.network.directory / "hosts-file"
        names.write_text(names.read_text().replace(f"{self.address} {self.name}\n", f"{address} {self.name}\n"))
        self.address = address

    def impair(self, *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Delay each packet of the host, in both directions, and lose a part of them.

        Args:
            delay: seconds for each direction.
            loss: the probability that a packet is lost.
        """
        assert self._link.stdin is not None
        self._link.stdin.write(f"{delay} {loss}\n")
        self._link.stdin.flush()

    def disconnect(self) -> None:
        """Cut the cable: packets are lost in both directions, and nobody is told."""
        self.network.on_switch("ip", "link", "set", self._port, "down")

    def connect(self) -> None:
        """Plug the cable in again."""
        self.network.on_switch("ip", "link", "set", self._port, "up")

    def power_off(self) -> None:
        """Kill all processes at once. The rest of the network hears nothing of it."""
        self.disconnect()
        self._end()

    def close(self) -> None:
        """Power the host off, and remove its link."""
        self._end()
        assert self._link.stdin is not None
        assert self._link.stdout is not None
        self._link.stdin.close()
        self._link.wait(_PATIENCE)
        self._link.stdout.close()

    def _end(self) -> None:
        self._holder.close()
        for process in self._started:
            process.wait(_PATIENCE)

    def _entering(self) -> list[str]:
        return [*self._holder.entering("--net", "--mount", "--pid", "--uts"), f"--wdns={self.home}"]


class _Holder:
    """A process that holds namespaces. It ends when the pipe of its input is closed, also by the death of the tests."""

    def __init__(self, namespaces: Iterable[str], setup: str) -> None:
        self._process = subprocess.Popen(
            ["unshare", *namespaces, "sh", "-c", f"{setup} && echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"namespaces cannot be made: {self._process.stderr.read()}")
        self.pid = self._process.pid
        if "--fork" in namespaces:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())

    def entering(self, *namespaces: str) -> list[str]:
        """Return the beginning of a command that runs in the namespaces."""
        return ["nsenter", f"--target={self.pid}", *namespaces]

    def close(self) -> None:
        """End the process, and with it all processes of its process namespace."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait(_PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


def _check(entering: Sequence[str], command: Sequence[str]) -> None:
    done = subprocess.run([*entering, *command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
