"""A listening socket with TLS. Until the handshake ends no limit counts the connection, so that its time is short."""

import asyncio

from aiohttp import web

HANDSHAKE_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 2.0
"""How long a closed connection waits for the client's last word, in seconds."""


class TlsSite(web.SockSite):
    """As aiohttp's, which leaves both timeouts at asyncio's 60 and 30 seconds."""

    async def start(self) -> None:
        await web.BaseSite.start(self)
        if (server := self._runner.server) is None:
            raise RuntimeError("the runner is not set up")
        self._server = await asyncio.get_running_loop().create_server(
            server,
            sock=self._sock,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
