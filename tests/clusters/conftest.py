"""Fixtures of the tests on clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters import hosts
from tests.clusters.standalone import Cluster
from tests.clusters.totals import Tables


def _running(directory: Path) -> Iterator[Cluster]:
    missing = hosts.missing()
    if missing is not None:
        pytest.skip(missing)
    cluster = Cluster(directory)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster on hosts of its own, for the tests of one file. It takes some ten seconds to start."""
    yield from _running(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def tables(cluster: Cluster) -> Iterator[Tables]:
    """The tables of the jobs, in the store of the cluster."""
    created = Tables(cluster)
    yield created
    created.close()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test, which may replace its hosts."""
    yield from _running(tmp_path)


@pytest.fixture
def own_tables(own_cluster: Cluster) -> Iterator[Tables]:
    """The tables of the jobs, in the store of a test's own cluster."""
    created = Tables(own_cluster)
    yield created
    created.close()
