"""The endpoints that get random requests: their ASGI applications in this process."""

from __future__ import annotations

from tests.chaos.fuzz.targets import Target

ENDPOINTS: dict[str, Target] = {}
