"""Who may use the page: passwords, the Host header, forms of other sites, security headers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import OptionError
from headrace.http.listening import listen
from headrace.http.serving import ServingThread
from headrace.ports import Store
from headrace.ui.access import Access
from headrace.ui.application import UiApplication
from headrace.ui.rendering import static_files
from headrace.ui.site import Site
from tests.ui.conftest import Browser

PASSWORD = "correct horse battery"


@pytest.fixture
def guarded(tmp_path: Path, shop: Store) -> Iterator[Browser]:
    """A client of a page with a password."""
    listener = listen("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    application = UiApplication(Site(shop, tmp_path), Access("127.0.0.1", PASSWORD))
    server = ServingThread(application, listener, "guarded-page")
    yield Browser(address)
    server.stop()


def test_an_address_that_others_reach_needs_a_long_password() -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.com"):
        with pytest.raises(OptionError, match="needs a password"):
            Access(host)
    with pytest.raises(OptionError, match="too short"):
        Access("127.0.0.1", "short")
    assert PASSWORD not in repr(Access("0.0.0.0", PASSWORD))
    assert not Access("localhost").needs_password


def test_the_password_opens_a_session_until_it_is_closed(guarded: Browser) -> None:
    assert guarded.get("/tables").status == 401
    assert guarded.get("/live/tables").status == 401
    assert 'type="password"' in guarded.get("/", accept="text/html").text
    assert guarded.post("/login", {"password": "wrong password"}).status == 401
    assert guarded.post("/login", {"password": PASSWORD}).status == 303
    cookie = next(iter(guarded.cookies.items()))
    assert guarded.get("/tables").status == 200
    assert guarded.post("/logout", {"form_token": guarded.form_token()}).status == 303
    guarded.cookies = dict([cookie])
    assert guarded.get("/tables").status == 401


def test_the_login_leads_to_the_page_that_was_asked_for_and_to_no_other_site(guarded: Browser) -> None:
    form = guarded.get("/table?name=orders", accept="text/html").text
    assert 'name="wanted" value="/table?name=orders"' in form
    for wanted, location in (
        ("/table?name=orders", "/table?name=orders"),
        ("//evil.example/tables", "/"),
        ("http://evil.example/tables", "/"),
        ("javascript:alert(1)", "/"),
        ("/stream/stop", "/"),
        ("//[", "/"),
        ("/tables\r\nset-cookie: a=b", "/"),
    ):
        guarded.cookies.clear()
        answer = guarded.post("/login", {"password": PASSWORD, "wanted": wanted})
        assert (answer.status, answer.headers["location"]) == (303, location)
    # In a second tab.
    assert guarded.post("/login", {"password": PASSWORD, "wanted": "/tables"}).headers["location"] == "/tables"


def test_programs_send_the_password_as_bearer_token(guarded: Browser) -> None:
    assert guarded.get("/tables", authorization=f"Bearer {PASSWORD}").status == 200
    assert guarded.get("/tables", authorization="Bearer wrong").status == 401


def test_guesses_of_the_password_are_limited() -> None:
    access = Access("127.0.0.1", PASSWORD)
    assert not any(access.check_password(f"guess {number}", "10.0.0.1") for number in range(10))
    assert not access.check_password(PASSWORD, "10.0.0.1")


def test_guesses_lock_out_neither_other_addresses_nor_those_that_know_the_password() -> None:
    access = Access("127.0.0.1", PASSWORD)
    assert access.check_password(PASSWORD, "10.0.0.1")
    for client in ("10.0.0.1", "10.0.0.2"):
        assert not any(access.check_password(f"guess {number}", client) for number in range(20))
    assert not access.check_password(PASSWORD, "10.0.0.2")
    for client in ("10.0.0.1", "10.0.0.3"):
        assert access.check_password(PASSWORD, client)
    for number in range(12_000):
        access.check_password("guess", f"client {number}")
    assert access.check_password(PASSWORD, "10.0.0.4")


def test_programs_of_other_sites_get_nothing(page: Browser) -> None:
    for path in ("/live/tables", "/tables", "/metrics", "/static/page.css"):
        for site in ("cross-site", "same-site"):
            assert page.get(path, sec_fetch_site=site, sec_fetch_mode="no-cors").status == 403
    framed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
    assert page.get("/tables", **framed).status == 403
    assert page.get("/tables", **{**framed, "sec_fetch_dest": "document"}).status == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((name, True) for name in ("127.0.0.1:8686", "localhost", "[::1]:8686", "LOCALHOST.:1", "proxy")),
        *((name, False) for name in ("evil.example", "", "127.0.0.1.evil.example", "[", "a@b:1")),
    ],
)
def test_other_names_in_the_host_header_are_refused(host: str, known: bool) -> None:
    assert Access("127.0.0.1", names=["proxy"]).knows_host(host) is known


def test_a_request_by_another_name_gets_nothing(page: Browser) -> None:
    assert page.get("/tables", host="evil.example").status == 421


def test_forms_of_other_sites_change_nothing(page: Browser) -> None:
    form = {"sql": "SELECT 1", "form_token": page.form_token()}
    assert page.post("/query", form).status == 200
    assert page.post("/query", {"sql": "SELECT 1"}).status == 403
    assert page.post("/query", {**form, "form_token": "0" * 64}).status == 403
    assert page.post("/query", form, origin="http://evil.example").status == 403
    assert page.post("/query", form, origin="http://[").status == 403
    assert page.post("/query", form, sec_fetch_site="cross-site").status == 403
    page.cookies.clear()
    assert page.post("/query", form).status == 403
    assert page.get("/stream/stop").status == 404


def test_every_response_forbids_inline_scripts_and_frames(page: Browser) -> None:
    for path in ("/", "/absent", "/static/page.js", "/live/absent"):
        headers = page.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    cookie = page.get("/").headers.get("set-cookie", "")
    assert cookie == "" or "HttpOnly; SameSite=Strict" in cookie


def test_only_static_files_of_the_package_are_served(page: Browser) -> None:
    names = static_files()
    assert {"htmx-2.0.6.min.js", "htmx-2.0.6.LICENSE.txt", "uplot-1.6.32.LICENSE.txt"} <= names.keys()
    assert page.get("/static/page.css").status == 200
    for path in ("/static/../site.py", "/static/%2e%2e/site.py", "/static/", "/static/absent"):
        assert page.get(path).status == 404


def test_a_large_form_is_refused(page: Browser) -> None:
    assert page.post("/query", {"sql": "x" * 300_000, "form_token": page.form_token()}).status == 413
