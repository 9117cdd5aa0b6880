"""The pages before anybody is signed in."""

import re

import orjson
from aiohttp import web

from gateway.web.admin.doors import DOORS, PREFIX
from gateway.web.console.pages import ROOT, Data, Page

_OWN_PATH = re.compile(r"/(?:console|docs)(?:[/?#][\x21-\x7e]*)?\Z")


async def load_sign_in(request: web.Request) -> Data:
    """Where to go afterwards: a page of ours, never another's address."""
    wanted = request.query.get("next", "")
    answer = await request.app[DOORS]["GET", f"{PREFIX}/setup"].handler(request)
    setup_open = isinstance(answer, web.Response) and orjson.loads(answer.body)["open"]  # type: ignore[arg-type]
    return {"next": wanted if _OWN_PATH.match(wanted) else f"{ROOT}/", "setup_open": setup_open}


FRONT_PAGES = (Page("/sign-in", "sign_in.html", "Sign in", load_sign_in, None),)
