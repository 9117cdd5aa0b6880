"""Gateways that tests start; the types of their fixtures."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from tests.support.gateway import RunningGateway, make_template, start_gateway

StartGateway = Callable[..., Awaitable[RunningGateway]]


ReadLog = Callable[[], str]


NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For the SDKs: each of their clients would read the certificates of this machine anew (20 ms), and none speaks TLS."""


@asynccontextmanager
async def starting(tmp_path: Path, template_path: Path) -> AsyncIterator[StartGateway]:
    """What ``gateway_with`` is, in whichever event loop it is."""
    if not template_path.exists():
        await make_template(template_path)
    numbers = count()
    async with AsyncExitStack() as stack:  # it closes every gateway, even if another one fails to close

        async def start(config: dict[str, Any], **kwargs: Any) -> RunningGateway:
            gateway = await start_gateway(tmp_path / f"data{next(numbers)}", template_path, config, **kwargs)
            stack.push_async_callback(gateway.close)
            return gateway

        yield start
