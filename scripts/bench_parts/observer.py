"""What observes a gateway: it takes its traces, and scrapes its metrics as Prometheus does.

    python -m scripts.bench_parts.observer [SECONDS]

Prints its port. ``POST /v1/traces`` takes spans; ``POST /watch/PORT`` begins to scrape the gateway at that port.
"""

import asyncio
import sys

import aiohttp
from aiohttp import web

SCRAPE_EVERY_S = 5.0


async def take_spans(request: web.Request) -> web.Response:
    """Read them, as a collector does, and answer with an empty ``ExportTraceServiceResponse``."""
    await request.read()
    return web.Response(content_type="application/x-protobuf")


async def scrape(port: int, every_s: float) -> None:
    """Scrape for ever. Ends with an error where the gateway does not answer."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                await response.read()
            await asyncio.sleep(every_s)


async def main(every_s: float) -> None:
    """Serve until the process is ended."""
    watching: set[asyncio.Task[None]] = set()

    async def watch(request: web.Request) -> web.Response:
        watching.add(asyncio.create_task(scrape(int(request.match_info["port"]), every_s)))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/v1/traces", take_spans)
    app.router.add_post("/watch/{port}", watch)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else SCRAPE_EVERY_S))
