"""The addresses of checkpoints in a store, as Spark gets them: ``webhdfs://headrace/<store>/path``.

``headrace`` is not a host but a logical name, which Spark's settings map to the current address of the server in the
driver. Spark writes the addresses of some state files into the checkpoint, and they must stay valid on another port or
machine. `headrace.formats.checkpoint_locations` has the addresses that users write.
"""

from __future__ import annotations

import hashlib

from headrace.ports.files import normal_path

SERVICE = "headrace"
"""The logical name that replaces host and port."""
PREFIX = f"webhdfs://{SERVICE}/"


def store_key(store_id: str) -> str:
    """Return the key of a store in addresses. It depends only on the store, not on its address."""
    return hashlib.sha256(store_id.encode()).hexdigest()[:12]


def served_url(store_id: str, path: str) -> str:
    """Return the address of a directory of a store for Spark."""
    return f"{PREFIX}{store_key(store_id)}{path}"


def parse_served(checkpoint: str) -> tuple[str, str] | None:
    """Return the store's key and the path in an address that `served_url` returned; None for another address."""
    if not checkpoint.startswith(PREFIX):
        return None
    key, _, path = checkpoint.removeprefix(PREFIX).partition("/")
    return key, normal_path(f"/{path}")
