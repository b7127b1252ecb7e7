"""Messages of errors: no password, also where an address was given by mistake."""

from __future__ import annotations

import pytest

from headrace.errors import OptionError, shown


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("postgresql://shop:hunter2@db/shop", "postgresql://shop:***@db/shop"),
        ("postgresql://shop:h/un@ter2@db:5432/shop", "postgresql://shop:***@db:5432/shop"),
        ("host=db password=hunter2 user=shop", "host=db password=*** user=shop"),
        ("PGPASSWORD=hunter2", "PGPASSWORD=***"),
        ("yt://proxy:80//home", "yt://proxy:80//home"),
        ("postgresql://shop@db:5432/shop", "postgresql://shop@db:5432/shop"),
    ],
)
def test_passwords_in_addresses_are_not_in_messages(given: str, expected: str) -> None:
    error = OptionError(f"no such table {given}", received=given)
    assert (error.problem, error.received, shown(given)) == (f"no such table {expected}", expected, repr(expected))
    assert "hunter2" not in str(error)


def test_a_password_that_is_cut_is_not_in_messages() -> None:
    given = f"postgresql://shop:{'hunter2' * 1000}@db/shop"
    assert "hunter2" not in str(OptionError("no such table", received=given)) + shown(given) + shown([given])
