"""A network cable that delays and loses packets, where the kernel has no such queueing discipline (netem).

``python link.py LEFT RIGHT`` creates two Ethernet devices in its network namespace, and carries packets between them.
Other programs then move the devices to their namespaces. Each line of the input sets the delay in seconds and the
probability of loss, for instance ``0.3 0.02``. The losses are the same in each run. The cable ends with its input.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADERS = 0x0002 | 0x1000
_FRAME = 65536
# Packets that a cable with delay holds, as the limit of netem.
_HELD = 4000


def _device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADERS))
    return device


def _send(device: int, frame: bytes) -> None:
    # The other end may be down, or its queue full: then the packet is lost.
    with suppress(OSError):
        os.write(device, frame)


def carry(left: int, right: int) -> None:
    """Carry packets between two devices until the input ends."""
    chance = random.Random(16)
    delay = loss = 0.0
    held: deque[tuple[float, int, bytes]] = deque()
    ends = {left: right, right: left}
    selector = selectors.DefaultSelector()
    for each in (left, right, sys.stdin.fileno()):
        selector.register(each, selectors.EVENT_READ)
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        for key, _ in selector.select(wait):
            if key.fd == sys.stdin.fileno():
                line = os.read(key.fd, 100)
                if not line:
                    return
                delay, loss = map(float, line.split()[-2:])
                continue
            try:
                frame = os.read(key.fd, _FRAME)
            except OSError:
                continue
            if loss and chance.random() < loss:
                continue
            if not delay and not held:
                _send(ends[key.fd], frame)
            elif len(held) < _HELD:
                held.append((time.monotonic() + delay, ends[key.fd], frame))
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, end, frame = held.popleft()
            _send(end, frame)


if __name__ == "__main__":
    devices = [_device(name) for name in sys.argv[1:]]
    print("ready", flush=True)  # noqa: T201
    carry(*devices)
