"""The page with the gateway's address, a key, code snippets, and a chat for a first try."""

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from gateway.server.client_ip import find_public_url
from gateway.server.console.form_choices import find_choices, find_free_name, format_choices
from gateway.server.console.page import Data

_DEFAULT_ORIGIN = "http://127.0.0.1:8080"
_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
KEY_NAME = "connect"


async def load_connect(request: web.Request) -> Data:
    """Load the data for the snippets and the chat."""
    choices = await find_choices(request)
    origin = find_address(request)
    return {
        **format_choices(choices, "chat"),
        "origin": origin,
        "here": urlsplit(origin).hostname in _LOOPBACK_HOSTS,
        "free_name": find_free_name(KEY_NAME, choices.taken_names),
        "quote": ESCAPERS,
    }


def find_address(request: web.Request) -> str:
    """Return the gateway's address without ``/v1``; the default address if unknown."""
    return find_public_url(request) or _DEFAULT_ORIGIN


def format_json_text(text: str) -> str:
    """Escape ``text`` for a JSON string, which is also valid in Python, JavaScript and YAML."""
    return orjson.dumps(text).decode()[1:-1]


def format_shell_json_text(text: str) -> str:
    """Escape ``text`` for a JSON string within single quotes of a shell."""
    return format_json_text(text).replace("'", "'\\''")


def format_shell_text(text: str) -> str:
    """Escape ``text`` for single quotes of a shell. An interactive shell expands ``!`` in double quotes."""
    return text.replace("'", "'\\''")


def format_opencode_text(text: str) -> str:
    """Escape ``text`` for JSON of opencode, which expands ``{env:NAME}`` and ``{file:PATH}`` before it parses."""
    return format_json_text(text).replace("{", "\\u007b")


ESCAPERS: Mapping[str, Callable[[str], str]] = {
    "json": format_json_text,
    "shell-json": format_shell_json_text,
    "shell": format_shell_text,
    "opencode": format_opencode_text,
    "": str,
}
"""The functions that escape a model's name in snippets, by the kind of quotes; ``connect.js`` has the same ones."""
