"""uvicorn's server with limits of connections."""

from __future__ import annotations

import socket
from typing import Any, cast

import uvicorn

from headrace.http.admission import Admission
from headrace.http.application import Application
from headrace.http.connections import ClientConnection
from headrace.http.limits import Limits
from headrace.http.listening import Acceptor


class Server(uvicorn.Server):
    """Serves an application at one listening socket, and closes the socket when it stops.

    Args:
        application: the application. Its limits are lowered to the descriptors of the process.
        listener: the socket.
        lifespan: close the application when the server stops.
    """

    def __init__(self, application: Application, listener: socket.socket, *, lifespan: bool) -> None:
        self._application = application
        self._listener = listener
        self.limits: Limits = application.limits.within_descriptors()
        self.admission = Admission(self.limits)
        super().__init__(
            uvicorn.Config(
                application,
                loop="asyncio",
                http=ClientConnection,
                ws="none",
                lifespan="on" if lifespan else "off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=self.limits.grace_seconds,
            )
        )

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=[])
        self.servers.append(cast(Any, Acceptor(self._listener, self.admission, self._connection)))

    async def shutdown(self, sockets: Any = None) -> None:
        self._application.stopping()
        await super().shutdown(sockets)

    def _connection(self, accepted: socket.socket) -> ClientConnection:
        return ClientConnection(
            self._application,
            self.limits,
            self.admission,
            accepted,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
