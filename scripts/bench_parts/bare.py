"""The relay that everyone writes first, and a measure for the gateway: aiohttp on both sides, and nothing else.

    python -m scripts.bench_parts.bare UPSTREAM

It prints its port. No key is asked, nothing is counted, looked at or written down; on uvloop, as the gateway is.
"""

import sys

import aiohttp
import uvloop
from aiohttp import web

_KEPT = ("Content-Type", "Content-Length", "Cache-Control")
_SESSION = web.AppKey("session", aiohttp.ClientSession)
_UPSTREAM = web.AppKey("upstream", str)


async def forward(request: web.Request) -> web.StreamResponse:
    """Whatever came, on to the provider, and what that says back, piece by piece."""
    headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
    url, body = request.app[_UPSTREAM] + request.path_qs, await request.read()
    async with request.app[_SESSION].request(request.method, url, data=body, headers=headers) as answer:
        kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
        out = web.StreamResponse(status=answer.status, headers=kept)
        await out.prepare(request)
        async for piece in answer.content.iter_any():
            await out.write(piece)
        await out.write_eof()
        return out


async def _open_session(app: web.Application) -> None:
    timeout = aiohttp.ClientTimeout(total=None)
    app[_SESSION] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


def main() -> None:
    """The command line."""
    app = web.Application()
    app[_UPSTREAM] = sys.argv[1]
    app.on_startup.append(_open_session)
    app.router.add_route("*", "/{path:.*}", forward)
    loop = uvloop.new_event_loop()
    runner = web.AppRunner(app, access_log=None)
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start())
    print(runner.addresses[0][1], flush=True)
    loop.run_forever()


if __name__ == "__main__":
    main()
