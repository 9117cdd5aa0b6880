"""A process that does with forms what the gateway does, and nothing else: reads them, and sends them on.

``python -m tests.support.multipart_process FOLDER URL`` prints its port: forms wait in FOLDER, and go to URL.
"""

import asyncio
import sys
from pathlib import Path

import uvloop
from aiohttp import web

from gateway.domain.channel import Timeouts
from gateway.domain.http_request import HttpRequest
from gateway.formats.wire.request_body import Form, build_data_url, build_payload
from gateway.server.multipart import FormLimits, MultipartReader
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.client import PooledHttpClient

TIMEOUTS = Timeouts(connect_s=5, first_byte_s=60, idle_s=60, total_s=60)


async def main(folder: Path, url: str) -> None:
    """Serve until killed; as JSON with files in it where the path says so."""
    spool, upstream = UploadSpool(folder, limit_bytes=2**31), PooledHttpClient()
    limits = FormLimits(max_body_bytes=2**27, max_file_bytes=2**26)

    async def post(request: web.Request) -> web.Response:
        reader = MultipartReader(request, spool, limits, account_id=1)
        try:
            form = await reader.read()
            content = (
                {**dict(form.fields), "images": [build_data_url(file) for file in form.files]}
                if request.path == "/json"
                else Form(dict(form.fields), tuple((file.field, file) for file in form.files))
            )
            body, media_type = build_payload(content, "0123456789abcdef")
            response = await upstream.send(HttpRequest("POST", url, {"Content-Type": media_type}, body, TIMEOUTS))
            try:
                return web.Response(body=await response.read(1000))
            finally:
                response.close()
        finally:
            reader.close()

    app = web.Application()
    app.router.add_post("/{as}", post)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, read_bufsize=64 * 1024)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201 - for the process that started it
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2]))
