"""Parses admin API requests, and defines query parameters that many operations have."""

from typing import Any

from gateway.errors import InvalidRequest, NotFound
from gateway.server.admin.handler import AdminRequest, Query
from gateway.server.openapi import schema as s
from gateway.server.query import is_number, parse_flag, parse_number
from gateway.server.request_body import read_json
from gateway.server.sessions import check_still_signed_in

DEFAULT_LISTED, MAX_LISTED = 50, 1000
LIMIT_QUERY = Query("limit", f"Page size, {DEFAULT_LISTED} by default and at most {MAX_LISTED}.", s.COUNT)
ACCOUNT_QUERY = Query("account", "Only this account (a name).")
MAX_SEARCH_CHARS = 200
"""Maximum length of a search: every word is looked for in every object."""


async def read_change(request: AdminRequest) -> dict[str, Any]:
    """Read the JSON object of a change.

    A body may take a minute to arrive, so the session is checked again afterwards.

    Raises:
        SignedOut: the session has ended.
        GatewayError: the body is no JSON object, too large or too slow; see ``request_body.read_sized_json``.
    """
    fields = await read_json(request.http)
    await check_still_signed_in(request.http)
    return fields


async def read_fields(request: AdminRequest) -> dict[str, Any]:
    """Read the JSON object of a change as ``read_change`` does, or return an empty object without a body."""
    return await read_change(request) if request.http.body_exists else {}


def parse_limit(request: AdminRequest) -> int:
    """Return the requested page size, at most ``MAX_LISTED``; the default is 50. Raises ``InvalidRequest``."""
    return min(parse_number(request.query, "limit") or DEFAULT_LISTED, MAX_LISTED)


def parse_search(request: AdminRequest) -> str:
    """Return the text that objects of a list must contain; empty without one. Raises ``InvalidRequest``."""
    search = request.query.get("search", "").strip()
    if len(search) > MAX_SEARCH_CHARS or "\0" in search:
        raise InvalidRequest(f"'search' must be a text of at most {MAX_SEARCH_CHARS} characters", param="search")
    return search


async def parse_account(request: AdminRequest) -> int | None:
    """Return the id of the requested account; for a member, its own account; None for all. Raises ``NotFound``."""
    name, actor = request.query.get("account"), request.actor
    if name is None:
        return actor.scope
    return (await request.services.auth.accounts.get_stored_account(name, actor)).id


def parse_live(request: AdminRequest) -> bool:
    """Return whether only jobs that have not ended are requested. Raises ``InvalidRequest``."""
    return parse_flag(request.query, "live")


def parse_key_id(request: AdminRequest) -> int:
    """Return the key id in the path. Raises ``NotFound``."""
    text = request.match_info["id"]
    if not is_number(text):
        raise NotFound(f"No key has the id {text[:40]!r}")
    return int(text)
