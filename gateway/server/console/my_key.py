"""The page that shows what is left on an API key, to a visitor who has the key and is not signed in."""

from aiohttp import web

from gateway.server.console.connect import find_address
from gateway.server.console.page import Data


async def load_my_key(request: web.Request) -> Data:
    """Load the gateway's address. A script sends the key that the visitor enters, and only to ``/v1``."""
    return {"origin": find_address(request)}
