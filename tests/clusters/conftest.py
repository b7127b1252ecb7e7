"""Fixtures of the tests on clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import hosts
from tests.clusters.standalone import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster on hosts of its own, for the tests of one file. It takes some ten seconds to start."""
    missing = hosts.missing()
    if missing is not None:
        pytest.skip(missing)
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.close()
