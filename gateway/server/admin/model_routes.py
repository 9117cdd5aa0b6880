"""Admin API: routes (names that clients use as models, with steps), tests of routes, and what shadow models did."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs

from gateway.answer_fields import OMITTED, Count, FieldSchema
from gateway.config.live_routes import find_version, parse_route
from gateway.domain.channel import Channel
from gateway.domain.price import NANOS_PER_USD, ONE_PPM
from gateway.domain.route import BALANCE_STRATEGIES, CAUSES, ModelShare, Route
from gateway.domain.setting import RouteView, Source
from gateway.errors import InvalidRequest
from gateway.frozen import frozen
from gateway.routing.channel_tester import RequestTestResult
from gateway.routing.route_spec import RouteSpec, build_route
from gateway.routing.route_warnings import list_route_warnings
from gateway.server.admin.answer import DeletedInForce, InForceField, build_view
from gateway.server.admin.channels import DRY_RUN_QUERY, build_explanation
from gateway.server.admin.explanation import Explanation, PriceSummary
from gateway.server.admin.handler import AdminRequest, ListPage, Query, admin_operation
from gateway.server.admin.io import read_change
from gateway.server.admin.listing import Listing, replace_objects
from gateway.server.admin.route_explain import build_price_summary
from gateway.server.context import RoutingServices
from gateway.server.openapi import schema as s
from gateway.server.query import parse_moment
from gateway.storage.shadow_comparison import compare_models

_WEEK_S = 7 * 86_400

_STEP: s.Schema = s.allow(
    s.record(models=s.array(s.either(s.TEXT, s.record(model=s.TEXT, weight=s.COUNT)))),
    channels=s.array(s.TEXT),
    on=s.array(s.one_of(*CAUSES)),
    balance=s.one_of(*BALANCE_STRATEGIES),
    wait_s=s.NUMBER,
    shadow=s.record(models=s.array(s.TEXT), share=s.NUMBER, max_running=s.COUNT),
    **{
        "if": s.allow(
            s.record(), min_prompt_tokens=s.COUNT, max_prompt_tokens=s.COUNT, images=s.FLAG, tools=s.FLAG, stream=s.FLAG
        )
    },
)
StepField = Annotated[Mapping[str, Any], FieldSchema(_STEP)]
"""A step in an answer. Fields that are left out have their defaults."""


@frozen(kw_only=True)
class VersionedRouteSpec(RouteSpec):
    """A route in a request that changes it.

    Attributes:
        version: the `version` of the route that was changed: 409 if the route has another version now. `none`: there
            was no such route. Null: any version is replaced.
    """

    version: str | None = None


@frozen(kw_only=True)
class RouteAnswer:
    """A route. ``overridden``: it is stored, and the configuration file declares a route of its name.

    ``warnings``: what is probably wrong, such as a step whose model no channel serves. ``version`` differs whenever
    anything of the route does.
    """

    name: str
    about: str
    max_attempts: Count | None
    deadline_s: float | None
    cache_ttl_s: int | None
    step: Sequence[StepField]
    source: Source
    overridden: bool
    warnings: Sequence[str]
    version: str
    in_force: InForceField | None = attrs.field(default=None, metadata=OMITTED)


@frozen(kw_only=True)
class ServingChannel:
    """A channel that serves a model of a step, with its price."""

    channel: str
    provider: str
    upstream_model: str
    price: PriceSummary | None
    price_multiplier: float


@frozen
class ServedModel:
    """A model of a step, and the channels that serve it there, in any group."""

    step: Count
    model: str
    weight: Count
    channels: Sequence[ServingChannel]


@frozen(kw_only=True)
class RouteDetails(RouteAnswer):
    """A route and the channels that serve its steps."""

    served: Sequence[ServedModel]


@frozen(kw_only=True)
class StepTestResult:
    """The outcome of a request to a model of a step. ``channel`` is null if none serves the model there."""

    step: Count
    model: str
    channel: str | None
    ok: bool
    error: str | None
    ms: Count | None


@frozen(kw_only=True)
class ModelComparison:
    """The requests of one model for a route. ``shadow``: they were copies, whose answers were dropped.

    ``model`` is the provider's name. The means are of completed requests, and null without one.

    For copies, ``compared`` is the number of answers that were compared with those of callers. ``mean_agreement`` is
    the mean share of words that both answers have, from 0 to 1, in any order and with those of tool calls; null without
    any. ``same_text`` of the compared had an equal text apart from case and spaces, ``same_tools`` equal tool calls
    (or both none), ``same_finish`` ended for the same reason.
    """

    model: str
    shadow: bool
    requests: Count
    failures: Count
    mean_first_byte_ms: float | None
    mean_total_ms: float | None
    mean_completion_tokens: float | None
    cost_usd: float
    compared: Count
    mean_agreement: float | None
    same_text: Count
    same_tools: Count
    same_finish: Count


_LISTING = Listing[RouteView](
    find_id=lambda view: f"{view.source}:{view.route.name}",
    find_texts=lambda view: (view.route.name, view.route.about, *view.route.models),
    sort_keys={
        "name": lambda view: view.route.name,
        "steps": lambda view: len(view.route.steps),
        "source": lambda view: view.source,
    },
    searched_fields="its name, its description and the models of its steps",
)


@admin_operation(query=_LISTING.query)
async def list_routes(request: AdminRequest) -> ListPage[RouteAnswer]:
    """List all routes: those of the configuration file, and those that were added here."""
    page = _LISTING.list_page(request, request.services.admin.routes.list_routes())
    return replace_objects(page, [RouteAnswer(**_build_fields(request, view)) for view in page])


@admin_operation()
async def get_route(request: AdminRequest) -> RouteDetails:
    """Get a route, with the channels that serve each of its steps, and what they cost."""
    view = request.services.admin.routes.get_route(request.match_info["name"])
    routing = request.services.routing
    served_models = [
        ServedModel(
            number,
            share.model,
            share.weight,
            [_build_serving_channel(routing, channel, share.model) for channel in channels],
        )
        for number, share, channels in _list_serving_channels(routing, view.route)
    ]
    return RouteDetails(**_build_fields(request, view), served=served_models)


@admin_operation(takes=VersionedRouteSpec, partly=True, change=True)
async def put_route(request: AdminRequest) -> RouteAnswer:
    """Add a route, or replace all of it; 409 if the configuration file declares it, or if its `version` is another."""
    fields = await read_change(request)
    version = fields.pop("version", None)
    if version is not None and not isinstance(version, str):
        raise InvalidRequest("version: expected a text", param="version")
    name, actor = request.match_info["name"], request.actor
    view = await request.services.admin.routes.put_route(name, fields, actor, version=version)
    return RouteAnswer(**_build_fields(request, view))


@admin_operation(takes=RouteSpec, partly=True, query=DRY_RUN_QUERY)
async def explain_route(request: AdminRequest) -> Explanation:
    """Explain where a request would go if the route of this name were the one in the body. Nothing is changed."""
    name = request.match_info["name"]
    return await build_explanation(request, name, draft=parse_route(name, await read_change(request)))


@admin_operation(change=True)
async def delete_route(request: AdminRequest) -> DeletedInForce:
    """Remove a route that was added here. Running requests keep it."""
    name = request.match_info["name"]
    await request.services.admin.routes.delete_route(name, request.actor)
    return DeletedInForce(name)


@admin_operation()
async def test_route(request: AdminRequest) -> list[StepTestResult]:
    """Send one real chat request of one token to each model of each step, at the channel that is tried first."""
    routing = request.services.routing
    route = request.services.admin.routes.get_route(request.match_info["name"]).route
    results = []
    for number, share, channels in _list_serving_channels(routing, route):
        if not channels:
            error = "no channel of the step serves the model"
            results.append(StepTestResult(step=number, model=share.model, channel=None, ok=False, error=error, ms=None))
            continue
        first_channel = max(channels, key=lambda channel: (channel.priority, channel.weight))
        test_result = await routing.channels.send_test(first_channel, share.model)
        results.append(_build_result(number, first_channel, test_result))
    return results


@admin_operation(query=(Query("since", "Only requests settled then or later; without it, those of the last week."),))
async def compare_shadow(request: AdminRequest) -> list[ModelComparison]:
    """Compare the requests of a route with the copies for its shadow models, among the newest rows of the log."""
    services = request.services
    name = services.admin.routes.get_route(request.match_info["name"]).route.name
    await services.billing.flusher.store_waiting()
    since_ms = parse_moment(request.query, "since")
    if since_ms is None:
        since_ms = int((services.clock() - _WEEK_S) * 1_000)
    sums = await compare_models(services.storage.database, name, since_ms)
    return [
        build_view(ModelComparison, model_sums, cost_usd=model_sums.cost_nanos / NANOS_PER_USD) for model_sums in sums
    ]


def _build_fields(request: AdminRequest, view: RouteView) -> dict[str, Any]:
    warnings = [*list_route_warnings(view.route, request.services.routing.catalog)]
    facts = {"source": view.source, "overridden": not view.in_force, "warnings": warnings}
    return {**build_route(view.route), **facts, "version": find_version(view.route)}


def _list_serving_channels(routing: RoutingServices, route: Route) -> list[tuple[int, ModelShare, list[Channel]]]:
    return [
        (
            number,
            share,
            [channel for channel, _ in routing.catalog.list_serving_channels(share.model) if step.uses(channel.name)],
        )
        for number, step in enumerate(route.steps, 1)
        for share in step.models
    ]


def _build_serving_channel(routing: RoutingServices, channel: Channel, model: str) -> ServingChannel:
    upstream_model = channel.upstream_model(model)
    price = routing.router.pricing.find_price(model, upstream_model, channel.provider)
    return ServingChannel(
        channel=channel.name,
        provider=channel.provider,
        upstream_model=upstream_model,
        price=None if price is None else build_price_summary(price),
        price_multiplier=channel.multiplier_ppm / ONE_PPM,
    )


def _build_result(step: int, channel: Channel, test_result: RequestTestResult) -> StepTestResult:
    return StepTestResult(
        step=step,
        model=test_result.model,
        channel=channel.name,
        ok=test_result.ok,
        error=test_result.error,
        ms=test_result.ms,
    )
