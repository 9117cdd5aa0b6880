"""The pages of limits: their list, and one with its subjects and its form."""

import asyncio
from collections.abc import Collection, Sequence

from aiohttp import web

from gateway.server.admin.limits import LimitAnswer
from gateway.server.console.form_choices import find_free_name
from gateway.server.console.lists import load_list
from gateway.server.console.page import Data, ask_admin_api

_MAX_SUBJECTS = 50
_MAX_RAISED_CHARS = 50
"""Maximum characters of a limit's name in the suggested name of a limit that raises it."""
WINDOWS = ("hour", "5h", "day", "week", "month", "quarter", "lifetime", "rolling:24h", "rolling:7d", "rolling:30d")


async def load_limits(request: web.Request) -> Data:
    """Load a page of the limits, each with the subject that has spent most."""
    return {"list": await load_list(request, "/limits", subjects=1), **_build_form(None)}


async def load_limit(request: web.Request) -> Data:
    """Load a limit, the limits that raise it, and its subjects that the query selects, the highest spending first."""
    query = {name: request.query.get(name) for name in ("account", "find")}
    limit, limits, subjects, accounts = await asyncio.gather(
        ask_admin_api(request, "/limits/{name}"),
        ask_admin_api(request, "/limits"),
        ask_admin_api(request, "/limits/{name}/subjects", limit=_MAX_SUBJECTS, **query),
        ask_admin_api(request, "/accounts"),
    )
    return {
        "limit": limit,
        "raises": [other for other in limits if other.raises == limit.name],
        "subjects": subjects,
        "raise_name": find_free_name(f"{limit.name[:_MAX_RAISED_CHARS]} raised", {other.name for other in limits}),
        "is_full": len(subjects) == _MAX_SUBJECTS,
        "accounts": accounts,
        "chosen_account": query["account"],
        **_build_form(limit),
    }


def list_limits_of(limits: Sequence[LimitAnswer], key_names: Collection[str]) -> list[LimitAnswer]:
    """Return the limits in force that count requests of one of these keys, without those that raise another limit."""
    return [
        limit
        for limit in limits
        if not limit.ended and limit.raises is None and (not limit.keys or not set(limit.keys).isdisjoint(key_names))
    ]


def _build_form(limit: LimitAnswer | None) -> Data:
    own_window = None if limit is None else limit.window
    kind, _, detail = ("user" if limit is None else limit.of or "").partition(":")
    windows = WINDOWS if own_window in {None, *WINDOWS} else (*WINDOWS, own_window)
    return {"kind": kind, "detail": detail, "windows": windows}
