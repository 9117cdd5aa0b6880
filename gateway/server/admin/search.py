"""Admin API: one search by name over requests, keys, models and other objects that the actor may see."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Literal, get_args

from gateway.domain.balance import DAY_S
from gateway.domain.subject_usage import SubjectFilter
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.frozen import frozen
from gateway.routing.model_offers import list_offers, list_route_offers
from gateway.server.admin.handler import AdminRequest, Query, admin_operation
from gateway.server.admin.io import parse_search

SearchKind = Literal["request", "end_user", "account", "key", "member", "model", "channel", "route", "limit"]
MAX_MATCHES = 6
"""Maximum number of matches of each kind."""
_USER_DAYS = 7
"""Number of days, today included, whose requests are searched for an end user."""
_REQUEST_ID_PATTERN = re.compile(r"req_[0-9a-z]+|[0-9a-f]{6,}", re.IGNORECASE)


@frozen(kw_only=True)
class SearchMatch:
    """An object that a search has found, by its id in the admin API. ``detail`` tells it from others of its name."""

    kind: SearchKind
    id: str
    name: str
    detail: str | None = None


@admin_operation(query=(Query("search", "Words that the name of an object contains, in any case, or a request's id."),))
async def search(request: AdminRequest) -> list[SearchMatch]:
    """Find requests, end users, accounts, keys, members, models, channels, routes and limits by name.

    A key is also found by the last four characters of its secret, a request by its id or a beginning that no other id
    has, and an end user by its whole name if it has requests of the last 7 days. Of each kind there are at most 6
    matches, names that begin with the text first. A member finds the keys, requests and end users of its own account,
    and the models that a key of the account can call.
    """
    search_text = parse_search(request)
    text = search_text.lower()
    if not text:
        raise InvalidRequest("'search' must have at least one character", param="search")
    candidates = [*await _list_keys(request), *_list_models(request)]
    if request.actor.scope is None:
        candidates += [*await _list_owners(request), *_list_routing(request)]
    words = set(text.split())
    found = [match for match in candidates if _has_words(match, words)]
    found.sort(key=lambda match: (not match.name.lower().startswith(text), match.name.lower()))
    matches = [*await _find_requests(request, text), *await _find_end_user(request, search_text)]
    for kind in get_args(SearchKind):
        matches += [match for match in found if match.kind == kind][:MAX_MATCHES]
    return matches


def _has_words(match: SearchMatch, words: Iterable[str]) -> bool:
    text = f"{match.name}\n{match.detail or ''}".lower()
    return all(word in text for word in words)


async def _find_requests(request: AdminRequest, text: str) -> list[SearchMatch]:
    if _REQUEST_ID_PATTERN.fullmatch(text):
        services = request.services
        await services.billing.flusher.store_waiting()
        with suppress(NotFound, Conflict):
            row = (await services.admin.history.get(text, request.actor.scope)).row
            return [SearchMatch(kind="request", id=row.id, name=row.id, detail=row.model)]
    return []


async def _find_end_user(request: AdminRequest, name: str) -> list[SearchMatch]:
    services = request.services
    today = int(services.clock()) // DAY_S
    user_filter = SubjectFilter("user", "", today - _USER_DAYS + 1, today, request.actor.scope, values=(name,))
    await services.billing.flusher.store_waiting()
    usage = await services.admin.history.subjects.find_usage(user_filter, 1)
    return [
        SearchMatch(kind="end_user", id=name, name=name, detail=f"{line.requests} requests in {_USER_DAYS} days")
        for line in usage.lines
    ]


async def _list_keys(request: AdminRequest) -> list[SearchMatch]:
    return [
        SearchMatch(
            kind="key", id=str(caller.key.id), name=caller.key.name, detail=f"{caller.account.name} {caller.key.masked}"
        )
        for caller in await request.services.auth.accounts.list_callers(request.actor)
    ]


def _list_models(request: AdminRequest) -> list[SearchMatch]:
    routing = request.services.routing
    if request.actor.scope is None:
        names = [model.id for model in routing.catalog.list_models()]
    else:
        offers = list_offers(routing.catalog, routing.router.pricing, request.user.account)
        route_offers = list_route_offers(routing.router.routes.values(), offers)
        names = [offer.listed.id for offer in offers] + [route_offer.route.name for route_offer in route_offers]
    return [SearchMatch(kind="model", id=name, name=name) for name in dict.fromkeys(names)]


async def _list_owners(request: AdminRequest) -> list[SearchMatch]:
    auth = request.services.auth
    account_names = await auth.accounts.name_accounts()
    accounts = [SearchMatch(kind="account", id=name, name=name) for name in account_names.values()]
    members = [
        SearchMatch(kind="member", id=str(member["id"]), name=member["name"], detail=member["account"])
        for member in await auth.members.list_members()
    ]
    return accounts + members


def _list_routing(request: AdminRequest) -> list[SearchMatch]:
    services = request.services
    channels = [
        SearchMatch(kind="channel", id=channel.name, name=channel.name, detail=channel.provider)
        for channel in services.routing.catalog.channels
    ]
    routes = [SearchMatch(kind="route", id=name, name=name) for name in services.routing.router.routes]
    limits = [
        SearchMatch(kind="limit", id=view.spec.name, name=view.spec.name)
        for view in services.admin.limits.list_limits()
    ]
    return channels + routes + limits
