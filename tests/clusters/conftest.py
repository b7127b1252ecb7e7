"""Fixtures of the tests on clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters import hosts
from tests.clusters.standalone import Cluster
from tests.clusters.totals import Tables


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster on hosts of its own, for the tests of one file. It takes some ten seconds to start."""
    missing = hosts.missing()
    if missing is not None:
        pytest.skip(missing)
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def tables(cluster: Cluster) -> Iterator[Tables]:
    """The tables of the jobs, in the store of the cluster."""
    created = Tables(cluster)
    yield created
    created.close()
