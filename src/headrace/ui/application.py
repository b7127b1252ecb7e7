"""The ASGI application of the web page: routes, security headers, pages, forms and live updates."""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

from headrace.errors import HeadraceError, NotFoundError, UnsupportedError
from headrace.http.application import (
    HEALTH_PATH,
    Application,
    Receive,
    Scope,
    Send,
    mark_authenticated,
)
from headrace.http.limits import Limits
from headrace.http.threads import Threads, ThreadsClosedError
from headrace.http.workload import IncomingBody, OverloadedError, Workload
from headrace.monitoring.exposition import PATH as METRICS_PATH
from headrace.monitoring.exposition import exposition, make_registry
from headrace.ui import query_page, queue_pages, stream_pages, table_pages, tunnel_pages
from headrace.ui.access import Access, cookie_name, is_foreign
from headrace.ui.rendering import Templates, link, static_files
from headrace.ui.requests import MAX_FORM_BYTES, BadRequestError, Page, Request, Response, fields
from headrace.ui.site import Site

Handler: TypeAlias = Callable[[Site, Request], Page]
Action: TypeAlias = Callable[[Site, Request], str]

LIMITS = Limits(connections=256, anonymous=64, anonymous_per_address=64, grace_seconds=1, stop_seconds=4.0)
_WORKERS = 6
# Queries may take seconds, and must not keep pages from their threads.
_QUERIES = 2
_MAX_LIVE = 32
_LIVE_SECONDS = 1.0
# A page that takes long is rendered less often, so that it uses at most a fifth of the time of a thread.
_LIVE_REST = 4
# A comment in the stream of events shows whether the browser is still there.
_SILENT_SECONDS = 15.0
_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_PAGES: Mapping[str, Handler] = {
    "/": stream_pages.stream_list,
    "/stream": stream_pages.stream_page,
    "/tables": table_pages.table_list,
    "/table": table_pages.table_page,
    "/table/rows": table_pages.table_rows,
    "/table/changes": table_pages.table_changes,
    "/tunnels": tunnel_pages.tunnel_list,
    "/tunnel": tunnel_pages.tunnel_page,
    "/queues": queue_pages.queue_list,
    "/queue": queue_pages.queue_page,
    "/queue/rows": queue_pages.queue_rows,
    "/consumers": queue_pages.consumer_list,
    "/producers": queue_pages.producer_list,
    "/query": query_page.query_page,
}
_ACTIONS: Mapping[str, Action] = {
    "/stream/start": stream_pages.start_stream,
    "/stream/stop": stream_pages.stop_stream,
    "/stream/drop": stream_pages.drop_stream,
}
_STATUS = {NotFoundError: 404, UnsupportedError: 404}
_LIVE_PREFIX = "/live"
_log = logging.getLogger("headrace")


class UiApplication(Application):
    """The pages of a site.

    Args:
        site: closed with the application.
        access: the rules for requests.

    Raises:
        MissingDependencyError: Jinja is not installed.
    """

    server = "ui"
    limits = LIMITS

    def __init__(self, site: Site, access: Access) -> None:
        self._templates = Templates()
        self._site = site
        self._access = access
        self._static = static_files()
        self._threads = Threads(_WORKERS, "headrace-ui")
        self._queries = Threads(_QUERIES, "headrace-ui-query")
        self._workload = Workload(requests=LIMITS.connections, body_bytes=16 * MAX_FORM_BYTES)
        self._followers = 0
        self._stopping = asyncio.Event()
        self._metrics = make_registry(site.workspace, site.store if site.has_store else None)
        # The collectors keep totals, so one thread at a time reads them.
        self._collecting = threading.Lock()

    def close(self, seconds: float | None = None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        for threads in (self._queries, self._threads):
            threads.close(None if end is None else max(0.0, end - time.monotonic()))
        self._site.close()

    def stopping(self) -> None:
        self._stopping.set()

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response(scope, receive, send)
        except BadRequestError as error:
            response = _text(error.status, str(error))
        except OverloadedError as error:
            response = _text(503, f"{error}.")
        except (ThreadsClosedError, asyncio.CancelledError):
            response = _text(503, "The server is stopping.")
        if response is not None:
            await _send(send, response)

    async def _response(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return the response to a request; None if it has been sent."""
        request = Request.of(scope)
        if not self._access.knows_host(request.headers.get("host", "")):
            # 421: another server may answer for this name.
            return _text(421, "This name is not a name of this server; --allow-host NAME adds it.")
        if request.path == HEALTH_PATH:
            return _text(200, "ok")
        if is_foreign(request):
            return _text(403, "A page of another site has sent this request.")
        if request.path.startswith("/static/"):
            return self._static_file(request)
        session = request.cookies.get(cookie_name(request.port), "")
        opened = not session
        if opened:
            # Without a password, the session only ties forms to a browser.
            session = self._access.open_session() if not self._access.needs_password else ""
        request = replace(request, session=session)
        if not await self._threads.run(self._access.permits, request):
            return await self._log_in(request, scope, receive)
        mark_authenticated(scope)
        if request.method == "POST":
            response = await self._post(request, scope, receive)
        elif request.method not in ("GET", "HEAD"):
            response = _text(405, "This method is not allowed.", allow="GET, HEAD, POST")
        elif request.path.startswith(f"{_LIVE_PREFIX}/"):
            await self._send_live(request, receive, send)
            return None
        elif request.path == METRICS_PATH:
            return await self._threads.run(self._exposition)
        else:
            response = await self._page(request)
        return _with_cookie(response, request, session) if opened and session else response

    def _exposition(self) -> Response:
        with self._collecting:
            body, kind = exposition(self._metrics)
        return Response(200, body, {"content-type": kind, "cache-control": "no-store"})

    # -- pages --------------------------------------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        handler = _PAGES.get(request.path)
        if handler is None:
            return await self._threads.run(self._problem, request, 404, "There is no such page.")
        return await self._threads.run(self._rendered, handler, request)

    def _rendered(self, handler: Handler, request: Request) -> Response:
        """Return a page, or a page that says why there is none."""
        try:
            page = handler(self._site, request)
            return _html(page.status, self._templates.page(page.template, self._values(request, page.values)))
        except HeadraceError as error:
            return self._problem(request, _STATUS.get(type(error), 400), str(error))
        except Exception:
            _log.exception("a page failed")
            return self._problem(request, 500, "The page failed; the log of `headrace ui` says why.")

    def _problem(self, request: Request, status: int, problem: str) -> Response:
        return _html(status, self._templates.page("problem.html", self._values(request, {"problem": problem})))

    def _values(self, request: Request, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a page with those that every page has."""
        return {
            "site": self._site,
            "path": request.path,
            "live_url": link(_LIVE_PREFIX + request.path, **request.query),
            "form_token": self._access.form_token(request.session),
            "needs_password": self._access.needs_password,
            **values,
        }

    def _static_file(self, request: Request) -> Response:
        name = request.path.removeprefix("/static/")
        content = self._static.get(name)
        if content is None or request.method not in ("GET", "HEAD"):
            return _text(404, "There is no such file.")
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kept = "public, max-age=31536000, immutable" if "v" in request.query else "no-cache"
        return Response(200, content, {"content-type": f"{kind}; charset=utf-8", "cache-control": kept})

    # -- forms --------------------------------------------------------------------------------------------

    async def _post(self, request: Request, scope: Scope, receive: Receive) -> Response:
        request = await self._with_form(request, scope, receive)
        if request.path == "/login":
            # Another tab has logged in.
            return _redirect(_own_page(request.form.get("wanted", "")))
        if not self._access.is_own_form(request):
            return _text(403, "The form is too old, or is not a form of this server: load the page again.")
        if request.path == "/logout":
            self._access.close_session(request.session)
            return _redirect("/")
        action = _ACTIONS.get(request.path)
        if action is None:
            if request.path != "/query":
                return _text(405, "This method is not allowed.", allow="GET, HEAD")
            return await self._queries.run(self._rendered, query_page.query_page, request)
        return await self._threads.run(self._acted, action, request)

    def _acted(self, action: Action, request: Request) -> Response:
        try:
            name = action(self._site, request)
        except HeadraceError as error:
            return self._problem(request, _STATUS.get(type(error), 409), str(error))
        return _redirect(link("/stream", name=name) if name else "/")

    async def _log_in(self, request: Request, scope: Scope, receive: Receive) -> Response:
        """Return the form for the password, or open a session."""
        if request.method == "POST" and request.path == "/login":
            request = await self._with_form(request, scope, receive)
            origin = request.headers.get("sec-fetch-site", "same-origin")
            wanted, given = _own_page(request.form.get("wanted", "")), request.form.get("password", "")
            if origin in ("same-origin", "none") and self._access.check_password(given, request.client):
                return _with_cookie(_redirect(wanted), request, self._access.open_session())
            return _html(401, self._templates.page("login.html", {"wrong": True, "wanted": wanted}))
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            wanted = link(request.path, **request.query)
            return _html(401, self._templates.page("login.html", {"wrong": False, "wanted": wanted}))
        return _text(401, "This page needs a password.", **{"www-authenticate": "Bearer"})

    async def _with_form(self, request: Request, scope: Scope, receive: Receive) -> Request:
        body, found = IncomingBody(scope, receive, silent_seconds=LIMITS.drain_seconds), bytearray()
        with self._workload.request() as held:
            while not body.complete:
                try:
                    part = await body.next_part()
                except TimeoutError:
                    raise BadRequestError(408, "The form took too long.") from None
                held.add(len(part))
                found += part
                if len(found) > MAX_FORM_BYTES:
                    raise BadRequestError(413, "The form is too large.")
        return replace(request, form=fields(bytes(found)))

    # -- live updates ---------------------------------------------------------------------------------------

    async def _send_live(self, request: Request, receive: Receive, send: Send) -> None:
        """Send the live part of a page as server-sent events, again whenever it changes, until the browser leaves."""
        path = request.path.removeprefix(_LIVE_PREFIX)
        handler = _PAGES.get(path)
        if handler is None or request.method != "GET":
            await _send(send, _text(404, "There is no such page."))
            return
        if self._followers >= _MAX_LIVE:
            # Browsers try again later, and the page stays as it is.
            await _send(send, _text(503, "Too many pages are open."))
            return
        self._followers += 1
        ends = [asyncio.ensure_future(_disconnected(receive)), asyncio.ensure_future(self._stopping.wait())]
        try:
            await _start(send, 200, {"content-type": "text/event-stream", "cache-control": "no-store"})
            shown, silent, pause = "", 0.0, _LIVE_SECONDS
            page_request = replace(request, path=path)
            # The browser has just got the page, and is busy with it.
            while not (await asyncio.wait(ends, timeout=pause, return_when=asyncio.FIRST_COMPLETED))[0]:
                begin = time.monotonic()
                part = await self._threads.run(self._live_part, handler, page_request)
                pause = max(_LIVE_SECONDS, _LIVE_REST * (time.monotonic() - begin))
                silent += pause
                if part != shown or silent >= _SILENT_SECONDS:
                    event = ": still here\n\n" if part == shown else f"data: {json.dumps(part)}\n\n"
                    shown, silent = part, 0.0
                    await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
        except (ThreadsClosedError, asyncio.CancelledError):
            pass
        finally:
            self._followers -= 1
            for end in ends:
                end.cancel()
        # When the server stops, browsers connect again until it is back.
        await send({"type": "http.response.body", "body": b""})

    def _live_part(self, handler: Handler, request: Request) -> str:
        try:
            page = handler(self._site, request)
            return self._templates.live_part(page.template, self._values(request, page.values))
        except HeadraceError as error:
            return self._templates.live_part("problem.html", self._values(request, {"problem": str(error)}))


def _own_page(address: str) -> str:
    """Return an address that a form sent, if it is that of a page of this server; otherwise the first page."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    return address if parts.path in _PAGES and not parts.scheme and not parts.netloc else "/"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _with_cookie(response: Response, request: Request, session: str) -> Response:
    cookie = f"{cookie_name(request.port)}={session}; Path=/; HttpOnly; SameSite=Strict"
    return Response(response.status, response.body, {**response.headers, "set-cookie": cookie})


def _html(status: int, body: bytes) -> Response:
    return Response(status, body, {"content-type": "text/html; charset=utf-8", "cache-control": "no-store"})


def _text(status: int, text: str, **headers: str) -> Response:
    return Response(status, f"{text}\n".encode(), {"content-type": "text/plain; charset=utf-8", **headers})


def _redirect(path: str) -> Response:
    # 303: the browser asks for the next page by GET, and a reload does not send the form again.
    return Response(303, b"", {"location": quote(path, safe="/?=&%+")})


async def _start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    found = [(name.encode(), value.encode("latin-1")) for name, value in {**_SECURITY, **headers}.items()]
    await send({"type": "http.response.start", "status": status, "headers": found})


async def _send(send: Send, response: Response) -> None:
    await _start(send, response.status, {**response.headers, "content-length": str(len(response.body))})
    await send({"type": "http.response.body", "body": response.body})
