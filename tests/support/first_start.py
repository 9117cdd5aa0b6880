"""The first start of all, made before workers are forked: each of them would pay for it again.

A first gateway migrates a database, reads prices, imports what it needs and compiles its statements: a second and a
half, where each later start takes 30 ms. Workers inherit all of it, and copy the templates of databases.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests.support.gateway import channel, make_template, start_gateway
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer

_templates: list[Path] = []


def find_template() -> Path | None:
    """Return the template that was made before this process was forked."""
    return _templates[-1] if _templates else None


async def start_first() -> None:
    """Make the templates, and call a gateway."""
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
        finally:
            await gateway.close()
    _templates.append(template)


def _remove(folder: Path, process: int) -> None:
    """At the end of the process that made it; forked workers run this function, too."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
