"""How to call the gateway: its address, a key, and snippets with real values; and a chat to try it at once."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from gateway.server.auth import is_secure
from gateway.server.console.form_choices import find_choices, find_free_name, format_choices
from gateway.server.console.page import Data, Page
from gateway.server.context import ROOMS
from gateway.server.middlewares import find_origin

_USUAL_ORIGIN = "http://127.0.0.1:8080"
_THIS_MACHINE = frozenset({"127.0.0.1", "localhost", "::1"})
KEY_NAME = "connect"


async def load_connect(request: web.Request) -> Data:
    """What the snippets say, and what the chat can be tried with."""
    choices = await find_choices(request)
    origin = find_address(request)
    return {
        **format_choices(choices, "chat"),
        "origin": origin,
        "here": urlsplit(origin).hostname in _THIS_MACHINE,
        "free_name": find_free_name(KEY_NAME, choices.taken),
        "quote": QUOTES,
    }


def find_address(request: web.Request) -> str:
    """Where callers reach the gateway: what the settings say, else as the page's own address has it; no ``/v1``."""
    told = request.app[ROOMS].base_url
    origin = told.removesuffix("/v1") or find_origin(request) or _USUAL_ORIGIN
    return origin.replace("http://", "https://", 1) if not told and is_secure(request) else origin


def format_json_text(text: str) -> str:
    """What stands between the quotes of a string in JSON; Python, JavaScript and YAML read it alike."""
    return orjson.dumps(text).decode()[1:-1]


def format_shell_json_text(text: str) -> str:
    """The same, in JSON that stands between single quotes of a shell."""
    return format_json_text(text).replace("'", "'\\''")


def format_shell_text(text: str) -> str:
    """What stands between double quotes of a shell."""
    for sign in '\\"$`':
        text = text.replace(sign, "\\" + sign)
    return text


QUOTES: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {"json": format_json_text, "shell-json": format_shell_json_text, "shell": format_shell_text, "": str},
)
"""How a model's name is written where it stands; ``connect.js`` has the same, for another choice."""

CONNECT_PAGES = (Page("/connect", "connect.html", "Connect", load_connect),)
