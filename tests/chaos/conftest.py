from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.storm import Actor


@pytest.fixture
def actors_of() -> Iterator[list[Actor]]:
    """A list of running actors; whatever is in it at the end of the test is killed."""
    running: list[Actor] = []
    yield running
    for actor in running:
        actor.kill()
        actor.log.close()
