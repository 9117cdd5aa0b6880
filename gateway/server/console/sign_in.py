"""The pages for visitors who are not signed in: sign in, first setup, and invitation links."""

import re

from aiohttp import web

from gateway.domain.member import MAX_PASSPHRASE, MIN_PASSPHRASE
from gateway.server.console.page import Data
from gateway.server.console.routes import ROOT
from gateway.server.context import SERVICES
from gateway.server.sessions import find_site

_OWN_PATH = re.compile(r"/(?:console|docs)(?:[/?#][\x21-\x7e]*)?\Z")
_MAX_PATH_CHARS = 1_024
LENGTHS = {"shortest": MIN_PASSPHRASE, "longest": MAX_PASSPHRASE}
"""Length limits of a new passphrase, for the page's hint."""


async def load_sign_in(request: web.Request) -> Data:
    """Load the page to open after the sign-in, and the available ways to sign in."""
    auth, sign_in = request.app[SERVICES].auth, request.app[SERVICES].sign_in
    return {
        "next": find_next(request),
        "setup_open": await _is_setup_open(request),
        "local": auth.sessions.is_local,
        "passkeys": auth.passkeys.find_obstacle(find_site(request)) is None,
        "providers": [] if sign_in is None else [{"name": spec.name, "title": spec.title} for spec in sign_in.specs],
    }


def find_next(request: web.Request) -> str:
    """Return the path to open after the sign-in: the query's if it is in the console or docs, else the overview."""
    next_url = request.query.get("next", "")
    return next_url if len(next_url) <= _MAX_PATH_CHARS and _OWN_PATH.match(next_url) else f"{ROOT}/"


async def load_setup(request: web.Request) -> Data:
    """Load whether the setup is still possible. The token is in the URL's fragment, which browsers do not send."""
    return {"setup_open": await _is_setup_open(request), **LENGTHS}


async def load_join(request: web.Request) -> Data:  # noqa: ARG001 - the signature of all pages
    """Load the length limits. A script looks up the purpose of the token in the URL's fragment."""
    return {**LENGTHS}


async def _is_setup_open(request: web.Request) -> bool:
    return await request.app[SERVICES].auth.find_setup_token() is not None
