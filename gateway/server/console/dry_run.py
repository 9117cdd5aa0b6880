"""The dry run of a request, as the pages of models and of routes show it."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from gateway.domain.operation import Operation
from gateway.frozen import frozen
from gateway.server.admin.accounts import KeyView
from gateway.server.admin.explanation import Explanation
from gateway.server.console.page import ask_admin_api

TRAITS = ("images", "tools", "stream")
_MAX_KEYS = 200
_FIELDS = ("key", "prompt_tokens", "prefer", *TRAITS)


@frozen
class DryRun:
    """Where a request would go.

    ``asked`` is the page's query by field; a missing field is empty. ``keys`` are those to choose from.
    """

    explanation: Explanation
    asked: dict[str, str]
    keys: Sequence[KeyView]


async def ask_dry_run(request: web.Request, model: str, operation: Operation = "chat") -> DryRun:
    """Explain the request to ``model``, a model or a route, that the page's query describes.

    Only the first ``_MAX_KEYS`` of the keys to choose from are loaded.
    """
    asked = {field: request.query.get(field, "") for field in _FIELDS}
    explanation, keys = await asyncio.gather(
        ask_admin_api(request, "/explain", model=model, operation=operation, **asked),
        ask_admin_api(request, "/keys", sort="name", limit=_MAX_KEYS),
    )
    return DryRun(explanation, asked, keys)
