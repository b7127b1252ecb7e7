"""The server of the web page: as a process, and as a thread of another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from headrace.http.listening import LOOPBACK, in_url, listen
from headrace.http.serving import ServingThread, run
from headrace.ports import Store
from headrace.ui.access import Access
from headrace.ui.application import UiApplication
from headrace.ui.site import Site

DEFAULT_PORT = 8686


def serve(
    store: Store | None,
    workspace: Path,
    port: int = DEFAULT_PORT,
    *,
    host: str = LOOPBACK,
    password: str | None = None,
    names: Iterable[str] = (),
    ready: Callable[[str, int], None],
) -> None:
    """Serve the page until the process gets SIGINT or SIGTERM.

    Args:
        store: the store, which the caller closes; None shows the streams only.
        workspace: the directory of the streams.
        port: 0 takes a free port.
        password: the password; needed for an address that other machines reach.
        names: more names that browsers may use for this server.
        ready: called with host and port when browsers can connect.

    Raises:
        OptionError: there is no password, or the server cannot listen at the address.
        MissingDependencyError: a package of the extra ``ui`` is not installed.
    """
    access = Access(host, password, names)
    run(lambda: UiApplication(Site(store, workspace), access), port, host=host, ready=ready)


class UiThread:
    """The page in a thread of this process, at a loopback address, until `stop`.

    Args:
        port: the port; 0 takes a free one.
    """

    def __init__(self, store: Store | None, workspace: Path, port: int = DEFAULT_PORT) -> None:
        listener = listen(LOOPBACK, port)
        self.address = f"http://{in_url(LOOPBACK)}:{listener.getsockname()[1]}"
        try:
            application = UiApplication(Site(store, workspace), Access(LOOPBACK))
        except BaseException:
            listener.close()
            raise
        self._thread = ServingThread(application, listener, "headrace-ui")

    def stop(self) -> None:
        """Stop serving."""
        self._thread.stop()
