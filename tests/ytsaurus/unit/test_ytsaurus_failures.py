"""Errors of YTsaurus as errors of headrace: their types and remedies, without the request's headers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from yt.packages.requests.exceptions import ConnectionError as RequestsConnectionError
from yt.wrapper.errors import YtTokenError, create_http_response_error

from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    OptionError,
    SequenceNumberError,
    SessionEpochError,
    StoreBusyError,
    StoreError,
)
from headrace_ytsaurus.store.failures import failure_of, translated
from headrace_ytsaurus.wire.errors import YtError

SECRET = "OAuth AQAD-secret"


def answered(code: int, message: str = "it went wrong", **attributes: Any) -> Exception:
    """Return the client's error for an answer."""
    inner = {"code": code, "message": message, "attributes": attributes, "inner_errors": []}
    error: Exception = create_http_response_error(
        {"code": 1, "message": "outer", "attributes": {}, "inner_errors": [inner]},
        url="http://proxy/api/v4/insert_rows",
        request_headers={"Authorization": SECRET},
        response_headers={"X-YT-Proxy": "proxy"},
        params={"path": "//tmp/t", "token": SECRET},
    )
    return error


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (500, NotFoundError, ""),
        (501, AlreadyExistsError, ""),
        (900, OptionError, "YT_TOKEN"),
        (901, OptionError, "permission"),
        (902, StoreError, "quota"),
        (1700, StoreBusyError, "try again"),
        (1702, StoreError, "yt mount-table"),
        (1703, StoreError, "writes"),
        (1717, StoreError, "max_rows_per_partition"),
        (1712, StoreBusyError, "later"),
        (1744, StoreBusyError, "later"),
        (2100, StoreBusyError, "another proxy"),
        (108, StoreBusyError, "later"),
        (3101, SessionEpochError, "another writer"),
        (3103, SequenceNumberError, "number the rows"),
        (11000, StoreBusyError, "again"),
        (424242, StoreError, ""),
    ],
)
def test_each_code_becomes_an_error_with_a_remedy(code: int, kind: type[HeadraceError], remedy: str) -> None:
    error = failure_of(answered(code), "write to //tmp/t")
    assert isinstance(error, kind)
    assert isinstance(error, YtError)
    assert remedy in str(error)
    assert str(error).startswith("write to //tmp/t: outer: it went wrong")
    assert "secret" not in str(error) + repr(error.attributes)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (type(error), str(error), error.code)


def test_an_unregistered_consumer_differs_from_a_missing_permission() -> None:
    error = failure_of(answered(901, 'Consumer "//tmp/c" is not registered for queue "//tmp/q"'))
    assert isinstance(error, NotFoundError)
    assert "register_consumer" in str(error)


def test_the_attributes_of_a_conflict_are_kept() -> None:
    error = failure_of(answered(3100, current_offset=5, expected_offset=3))
    assert isinstance(error, YtError)
    assert error.attributes["current_offset"] == 5


def test_a_refused_token_is_an_option_to_set() -> None:
    error = failure_of(YtTokenError("Your request has failed to authenticate", inner_errors=[answered(900)]))
    assert isinstance(error, OptionError)
    assert "YT_TOKEN" in str(error)


@pytest.mark.parametrize("broken", [RequestsConnectionError("refused"), ConnectionResetError("reset")])
def test_a_broken_connection_is_a_temporary_error(broken: Exception) -> None:
    with (
        pytest.raises(StoreBusyError, match=r"read queue //tmp/q: .*check the address of the proxy"),
        translated("read queue //tmp/q"),
    ):
        raise broken


def test_errors_of_headrace_are_unchanged() -> None:
    with pytest.raises(OptionError, match="mine"), translated("do something"):
        raise OptionError("mine")
