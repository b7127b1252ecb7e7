"""docs/postgres-cases.md has the results of its cases."""

from __future__ import annotations

from pathlib import Path

from tests.interop import postgres_cases
from tests.postgres_server import needs_version

_PAGE = Path(__file__).parents[2] / "docs" / "postgres-cases.md"


@needs_version(18)
def test_each_case_is_followed_or_refused_by_name_as_the_page_says() -> None:
    assert postgres_cases.page() == _PAGE.read_text()
