"""The source of the streams into lake tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.ports import Store


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True) as store:
        orders = store.create_table("orders", {"id": "long", "user": "string", "n": "long"}, "id", pre_images=True)
        orders.put([{"id": number, "user": f"u{number % 2}", "n": number} for number in range(6)])
        yield store
