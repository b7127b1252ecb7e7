"""The store for headrace's conformance tests: ``pytest --pyargs headrace.testing.suite``."""

from pathlib import Path

import pytest

from headrace.testing import Place, Traits

TRAITS = Traits(any_names=True, tells_changes=True)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The location of a test's store."""
    return Place("parquet://{directory}/store", tmp_path, traits=TRAITS)
