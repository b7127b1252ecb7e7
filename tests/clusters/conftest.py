"""Networks for tests of clusters; skipped where this machine can have none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.network import Network, why_impossible


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    reason = why_impossible()
    if reason is not None:
        pytest.skip(reason)
    with Network(4, tmp_path) as made:
        yield made
