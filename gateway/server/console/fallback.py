"""The page on which a model becomes the fallback of a request's model: a last step of its route."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from gateway.config.live_routes import NO_ROUTE_VERSION
from gateway.domain.model_description import ModelKind
from gateway.domain.operation import OPERATIONS, Operation
from gateway.server.admin.accounts import KeyView
from gateway.server.admin.explanation import Explanation
from gateway.server.admin.model_routes import RouteAnswer
from gateway.server.admin.models import ModelView
from gateway.server.admin.requests import RequestDetails
from gateway.server.admin.usage import FacetsView
from gateway.server.console.page import Data, ask_admin_api

_MODEL_KINDS: Mapping[Operation, ModelKind] = {
    "completions": "completion",
    "embeddings": "embedding",
    "rerank": "rerank",
    "moderations": "moderation",
    "images": "image",
    "image_edits": "image",
    "speech": "speech",
    "transcriptions": "transcription",
}
"""The kind of model for those of ``FALLBACK_OPERATIONS`` that are no conversations."""
FALLBACK_OPERATIONS: frozenset[Operation] = frozenset(
    {*_MODEL_KINDS, *(name for name, facts in OPERATIONS.items() if facts.conversation)}
)
"""The operations whose requests a route can send to a fallback."""


async def load_fallback(request: web.Request) -> Data:
    """Load the models to choose from, and a dry run of the request with the chosen one as the last step."""
    row: RequestDetails
    routes: Sequence[RouteAnswer]
    models: Sequence[ModelView]
    facets: FacetsView
    keys: Sequence[KeyView]
    row, routes, models, facets, keys = await asyncio.gather(
        ask_admin_api(request, "/requests/{id}"),
        ask_admin_api(request, "/routes"),
        ask_admin_api(request, "/models"),
        ask_admin_api(request, "/requests/facets"),
        ask_admin_api(request, "/keys"),
    )
    route_names = {route.name for route in routes}
    name = row.route if row.route in route_names else row.model  # the route may be deleted
    route = next((route for route in routes if route.name == name and not route.overridden), None)
    steps = [{"models": [name]}] if route is None else [dict(step) for step in route.step]
    used_names = {name, *(_read_name(share) for step in steps for share in step["models"])}
    choices = _list_choices(models, facets, row.operation, used_names) if name else []
    chosen = (request.query.get("model") or choices[0]) if choices else ""
    is_known_key = any(key.id == row.key_id for key in keys)
    return {
        "row": row,
        "name": name,
        "route": route,
        "choices": choices if chosen in {"", *choices} else [chosen, *choices],
        "chosen": chosen,
        "is_known": chosen in used_names,
        "explanation": await _explain(request, row, name, chosen, is_known_key=is_known_key) if chosen else None,
        "fields": _build_fields(route, [*steps, {"models": [chosen]}]),
    }


async def _explain(
    request: web.Request, row: RequestDetails, name: str, fallback: str, *, is_known_key: bool
) -> Explanation:
    explanation: Explanation = await ask_admin_api(
        request,
        "/explain",
        model=name,
        fallback=fallback,
        operation=row.operation,
        key=row.key_id if is_known_key else None,
        prompt_tokens=row.prompt_tokens,
        stream=str(row.stream).lower(),
    )
    return explanation


def _find_operation(name: str) -> Operation | None:
    return next((operation for operation in FALLBACK_OPERATIONS if operation == name), None)


def _read_name(share: str | Mapping[str, Any]) -> str:
    return share if isinstance(share, str) else str(share["model"])


def _list_choices(
    models: Iterable[ModelView], facets: FacetsView, operation_name: str, used_names: set[str]
) -> list[str]:
    """Return the models that could serve the operation and are no step yet, those with most requests first.

    There are none for an operation that is not in ``FALLBACK_OPERATIONS``.
    """
    operation = _find_operation(operation_name)
    if operation is None:
        return []
    kind = _MODEL_KINDS.get(operation, "chat")
    requests_by_model = {facet.value: facet.requests for facet in facets.models}
    names = [model.id for model in models if not model.route and model.kind in {kind, None}]
    return sorted({*names} - used_names, key=lambda name: (-requests_by_model.get(name, 0), name))


def _build_fields(route: RouteAnswer | None, steps: Sequence[Mapping[str, Any]]) -> Data:
    """Return the fields of ``route`` with ``steps`` as the admin API takes them, with the version of ``route``.

    Without a route, they are those of a new one.
    """
    if route is None:
        return {"step": steps, "version": NO_ROUTE_VERSION}
    edited_fields = {name: getattr(route, name) for name in ("about", "max_attempts", "deadline_s", "cache_ttl_s")}
    return {
        **{name: value for name, value in edited_fields.items() if value not in {None, ""}},
        "step": steps,
        "version": route.version,
    }
