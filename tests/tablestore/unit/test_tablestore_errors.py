"""Errors of Tablestore's service, names and limits."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreError
from headrace_tablestore.wire.errors import STATUS, ServiceError, body, parse
from headrace_tablestore.wire.limits import is_instance_name, is_name


def test_an_error_body_has_code_and_message() -> None:
    error = parse(403, {"X-Ots-RequestId": "r1"}, body("OTSConditionCheckFail", "Condition check failed."))
    assert (error.code, error.status, error.message, error.request_id) == (
        "OTSConditionCheckFail",
        403,
        "Condition check failed.",
        "r1",
    )
    assert isinstance(error, StoreError)
    assert str(error) == "Tablestore answered OTSConditionCheckFail: Condition check failed (request r1)"
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_an_error_has_the_status_of_its_code() -> None:
    assert ServiceError("OTSObjectNotExist").status == 404
    assert ServiceError("OTSSomethingNew").status == 500
    assert ServiceError("OTSSomethingNew", status=418).status == 418


@given(st.integers(300, 599), st.binary(max_size=200))
def test_a_body_that_is_not_an_error_becomes_one(status: int, content: bytes) -> None:
    error = parse(status, {}, content)
    assert error.code
    assert error.status == status
    assert error.request_id is None


def test_the_response_of_a_proxy_gets_a_code_by_its_status() -> None:
    assert parse(502, {}, b"<html>bad gateway</html>").code == "OTSServerUnavailable"
    assert parse(404, {}, b"").code == "OTSClientError"


BUSY = ["OTSServerBusy", "OTSTableNotReady", "OTSPartitionUnavailable", "OTSRowOperationConflict"]
UNCERTAIN = ["OTSTimeout", "OTSInternalServerError", "OTSServerUnavailable", "OTSTunnelServerUnavailable"]


@pytest.mark.parametrize("code", sorted({*STATUS, "OTSNotEnoughCapacityUnit"}))
def test_only_transient_errors_are_retried(code: str) -> None:
    error = ServiceError(code, "for a reason")
    assert error.may_pass(repeatable=True) == (code in BUSY or code in UNCERTAIN or code == "OTSNotEnoughCapacityUnit")
    assert error.may_pass(repeatable=False) == (code in BUSY or code == "OTSNotEnoughCapacityUnit")


def test_throttling_is_transient_and_trimmed_data_is_not() -> None:
    assert ServiceError("OTSQuotaExhausted", "Too frequent table operations.").may_pass(repeatable=False)
    assert not ServiceError("OTSQuotaExhausted", "Number of tables exceeded.").may_pass(repeatable=True)
    lost = "OTSTrimmedDataAccess Requested stream data is already trimmed or does not exist."
    assert not ServiceError("OTSTunnelServerUnavailable", lost).may_pass(repeatable=True)


@pytest.mark.parametrize("name", ["a", "_", "Order_1", "__spark_meta_checkpoint__", "x" * 255])
def test_valid_names_of_tables_are_accepted(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a.b", "a:b", "é", "a\n", "x" * 256])
def test_invalid_names_of_tables_are_refused(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    ("name", "fits"), [("shop", True), ("a-1", True), ("ab", False), ("1ab", False), ("a" * 17, False), ("a_b", False)]
)
def test_names_of_instances_are_checked(name: str, fits: bool) -> None:
    assert is_instance_name(name) == fits
