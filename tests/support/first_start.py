"""The first start of all, made before workers are forked: each of them would pay for it again.

A first gateway migrates a database, reads prices, imports what it needs and compiles its statements: a second and a
half, where each later start takes 30 ms. Workers inherit all of it, and copy the templates of databases.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from gateway.server.console.routes import list_pages
from tests.support.console_people import make_administrator
from tests.support.gateway import RunningGateway, channel, make_template, start_gateway
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

NAMES = ("1", "up", "m", "acme")
"""What pages of one object are opened of: a key, a channel, a model, an account. Others are not found."""

_templates: list[Path] = []


def find_template() -> Path | None:
    """Return the template that was made before this process was forked."""
    return _templates[-1] if _templates else None


async def start_first(*, opens_pages: bool = False) -> None:
    """Make the templates, and call a gateway.

    ``opens_pages``: its pages are opened, too. Each worker that shows one would compile its template, its statements
    and the OpenAPI document for itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="template-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(_remove, folder, os.getpid())
    template = await make_template(folder / "gateway.db")
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await start_gateway(folder / "called", template, {"channel": [channel(up.base_url)]})
        try:
            async with gateway.post() as response:
                await response.read()
            async with gateway.client.get(f"{gateway.url}/console/") as page:
                await page.read()
            if opens_pages:
                await _open_pages(gateway)
        finally:
            await gateway.close()
    _templates.append(template)


async def _open_pages(gateway: RunningGateway) -> None:
    administrator = await make_administrator(gateway)
    async with administrator.session:
        for page in list_pages():
            for name in NAMES if "{" in page.path else NAMES[:1]:
                await administrator.open(re.sub(r"\{\w+\}", name, page.path))
    for path in ("/docs", "/openapi.json", "/help"):
        async with gateway.client.get(gateway.url + path) as response:
            await response.read()


def _remove(folder: Path, process: int) -> None:
    """At the end of the process that made it; forked workers run this function, too."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
