"""Signatures of Tablestore: published vectors, the signer of the official SDK, and verification."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_tablestore.wire.signatures import (
    Credentials,
    content_md5,
    derived_key,
    format_date,
    parse_date,
    request_headers,
    response_authorization,
    sign_request,
    verify_request,
    verify_response,
)

CREDENTIALS = Credentials("LTAItest", "secret")
NOON = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
REQUEST = {
    "x-ots-date": "2026-01-02T03:04:05.000Z",
    "x-ots-apiversion": "2015-12-31",
    "x-ots-accesskeyid": "LTAItest",
    "x-ots-instancename": "inst",
    "x-ots-contentmd5": "1B2M2Y8AsgTpgAmY7PhCfg==",
}
V4 = {"x-ots-signdate": "20260102", "x-ots-signregion": "cn-hangzhou"}
RESPONSE = {
    "x-ots-contentmd5": "1B2M2Y8AsgTpgAmY7PhCfg==",
    "x-ots-contenttype": "protocol buffer",
    "x-ots-date": "2026-01-02T03:04:06.000Z",
    "x-ots-requestid": "0005-test",
}


@pytest.mark.parametrize(
    ("path", "signature"),
    [("/ListTable", "hvF+PdHAGwnbeiTSiCek3C5hgBM="), ("/tunnel/list", "xQ81Im58NYlFCi6alRtMIHpqevQ=")],
)
def test_version_2_matches_the_published_vectors(path: str, signature: str) -> None:
    assert sign_request(path, REQUEST, "secret") == signature
    assert request_headers(path, b"", CREDENTIALS, "inst", now=NOON) == {**REQUEST, "x-ots-signature": signature}


def test_version_4_matches_the_published_vectors() -> None:
    signature = "BjQPUqDRWCaFY/NZ8JJ0kVz8VY5swmM+uikMKSj2hDU="
    assert derived_key("secret", "20260102", "cn-hangzhou") == b"/O8vUmNxye+EGg75/j8bdPHxhlCnbc9ifutoQPq/pqw="
    assert sign_request("/ListTable", {**REQUEST, **V4}, "secret", "cn-hangzhou") == signature
    headers = request_headers("/ListTable", b"", CREDENTIALS, "inst", region="cn-hangzhou", now=NOON)
    assert headers == {**REQUEST, **V4, "x-ots-signaturev4": signature}


def test_responses_match_the_published_vectors() -> None:
    v2 = response_authorization("/ListTable", RESPONSE, "LTAItest", "secret", REQUEST)
    v4 = response_authorization("/ListTable", RESPONSE, "LTAItest", "secret", {**V4, "X-Ots-SignatureV4": "…"})
    assert v2 == "OTS LTAItest:AzqNUVf48IJ1pjVY1hx/18jBhSE="
    assert v4 == "OTS LTAItest:Q6XaLig6uqzk0AtVqlEFyffiuVI="
    assert verify_response("/ListTable", {**RESPONSE, "Authorization": v2}, CREDENTIALS)
    signed = {**RESPONSE, "Authorization": v4}
    assert verify_response("/ListTable", signed, CREDENTIALS, region="cn-hangzhou", signdate="20260102")
    assert not verify_response("/ListTable", signed, CREDENTIALS, region="cn-beijing", signdate="20260102")
    assert not verify_response("/ListTable", signed, CREDENTIALS)
    assert not verify_response("/ListTable", RESPONSE, CREDENTIALS)


@pytest.fixture(scope="module")
def sdk() -> Any:
    """The official SDK, imported before hypothesis measures time."""
    return pytest.importorskip("tablestore.auth")


text = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
paths = st.sampled_from(["/GetRow", "/BatchWriteRow", "/tunnel/readrecords"])
regions = st.none() | st.sampled_from(["cn-hangzhou", "us-west-1"])


@given(
    path=paths,
    body=st.binary(max_size=50),
    key_id=text,
    secret=text,
    sts_token=st.none() | text,
    region=regions,
)
def test_signatures_match_the_official_sdk(
    sdk: Any, path: str, body: bytes, key_id: str, secret: str, sts_token: str | None, region: str | None
) -> None:
    ours = request_headers(path, body, Credentials(key_id, secret, sts_token), "inst", region=region, now=NOON)
    theirs = {name: value for name, value in ours.items() if "sign" not in name}
    context = sdk.RequestContext(sdk.Credentials(key_id, secret, sts_token))
    signer = sdk.SignV2("utf-8") if region is None else sdk.SignV4("utf-8", region=region, sign_date="20260102")
    signer.make_request_signature_and_add_headers(path, theirs, context)
    assert ours == theirs
    key = signer.get_signing_key(context)
    answered = f"OTS {key_id}:{signer.make_response_signature(path, RESPONSE, key)}"
    assert answered == response_authorization(path, RESPONSE, key_id, secret, ours)


@given(paths, st.binary(max_size=50), regions)
def test_a_request_that_was_changed_after_signing_is_refused(path: str, body: bytes, region: str | None) -> None:
    headers = request_headers(path, body, CREDENTIALS, "inst", region=region)
    assert verify_request(path, headers, "secret")
    assert verify_request(path, {name.title(): f" {value} " for name, value in headers.items()}, "secret")
    assert not verify_request(path, headers, "Secret")
    assert not verify_request("/DeleteTable", headers, "secret")
    for name in headers:
        assert not verify_request(path, {**headers, name: headers[name] + "x"}, "secret"), name
        assert not verify_request(path, {key: value for key, value in headers.items() if key != name}, "secret"), name
    assert not verify_request(path, {**headers, "x-ots-added": "1"}, "secret")


def test_malformed_signatures_are_refused_without_other_errors() -> None:
    assert not verify_request("/ListTable", {}, "secret")
    assert not verify_request("/ListTable", {**REQUEST, "x-ots-signature": "Ünicode \udcff"}, "secret")
    assert not verify_request("/ListTable", {**REQUEST, "x-ots-signaturev4": "x"}, "secret")
    assert not verify_response("/ListTable", {**RESPONSE, "authorization": "OTS é"}, CREDENTIALS)


@pytest.mark.parametrize(
    ("day", "accepted"),
    [("20260101", True), ("20260102", True), ("20260103", True)]
    + [(day, False) for day in ("20251231", "20260104", "19990101", "20260231", "2026-01-02", "2026012", "")],
)
def test_the_key_of_version_4_is_valid_for_its_day_and_the_adjacent_days(day: str, accepted: bool) -> None:
    headers = {**REQUEST, **V4, "x-ots-signdate": day}
    headers["x-ots-signaturev4"] = sign_request("/ListTable", headers, "secret", "cn-hangzhou")
    assert verify_request("/ListTable", headers, "secret") is accepted


@pytest.mark.parametrize("date", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "no date", ""])
def test_dates_at_the_limits_of_the_calendar_raise_no_other_errors(date: str) -> None:
    headers = {**REQUEST, **V4, "x-ots-date": date}
    headers["x-ots-signaturev4"] = sign_request("/ListTable", headers, "secret", "cn-hangzhou")
    assert not verify_request("/ListTable", headers, "secret")


def test_the_signature_covers_the_sts_token() -> None:
    headers = request_headers("/ListTable", b"", Credentials("LTAItest", "secret", "session"), "inst", now=NOON)
    assert headers["x-ots-ststoken"] == "session"
    assert headers["x-ots-signature"] != "hvF+PdHAGwnbeiTSiCek3C5hgBM="
    assert verify_request("/ListTable", headers, "secret")


def test_dates_have_milliseconds_and_are_parsed_with_any_fraction() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=8))
    assert format_date(datetime.datetime(2026, 1, 2, 11, 4, 5, 6789, tzinfo=zone)) == "2026-01-02T03:04:05.006Z"
    for written in ("2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05.10203Z", "2026-01-02T03:04:05Z"):
        assert parse_date(written) == NOON
    for broken in (
        "",
        "2026-01-02",
        "2026-13-02T03:04:05.000Z",
        "2026-01-02T03:04:05.000+08:00",
        "٢026-01-02T03:04:05Z",
    ):
        assert parse_date(broken) is None


def test_credentials_hide_their_secrets() -> None:
    credentials = Credentials("LTAItest", "hush", "whisper")
    assert repr(credentials) == "Credentials(access_key_id='LTAItest')"
    assert pickle.loads(pickle.dumps(credentials)) == credentials


def test_the_md5_of_a_body_is_base64() -> None:
    assert content_md5(b"") == "1B2M2Y8AsgTpgAmY7PhCfg=="
