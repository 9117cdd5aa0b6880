"""What the models of a route answered, side by side: those that share a step, and those that get copies."""

from collections.abc import Mapping, Sequence

from gateway.frozen import frozen
from gateway.server.admin.model_routes import ModelComparison, RouteDetails


@frozen
class ModelResult:
    """The requests of a model for a route.

    Attributes:
        sums: what was counted; its ``model`` is the provider's name.
        share: the model's part of the counted requests, or of the counted copies.
        step: the first step that has the model, from 1; None for copies, and if no step has the model any more.
        weight_share: the part of that step's requests that its weight gives the model; None without a step.
        ordinary: the sums to compare with: those of the step's model with the highest weight, unless it is this model;
            for copies, those of the model with most of the route's requests. None without any.
    """

    sums: ModelComparison
    share: float
    step: int | None
    weight_share: float | None
    ordinary: ModelComparison | None = None

    @property
    def answered_share(self) -> float:
        return find_answered_share(self.sums)

    @property
    def usd_per_request(self) -> float:
        return self.sums.cost_usd / self.sums.requests


@frozen
class _Place:
    """The place of a model in a route, and all names of the step's model with the highest weight."""

    step: int
    weight_share: float
    main_names: frozenset[str]


def find_answered_share(sums: ModelComparison) -> float:
    """Return the share of requests that did not fail. ``sums`` has at least one request."""
    return 1 - sums.failures / sums.requests


def is_worse(value: float | None, other: float | None) -> bool:
    """Return whether ``value`` exceeds ``other`` by more than a tenth; False if one of them is unknown."""
    return value is not None and other is not None and value > 1.1 * other


def compare_results(
    route: RouteDetails, comparisons: Sequence[ModelComparison]
) -> tuple[list[ModelResult], list[ModelResult]]:
    """Return the results of the route's own requests, by step and weight, and those of copies."""
    places = _list_places(route)
    own_sums = [sums for sums in comparisons if not sums.shadow and sums.requests]
    copied_sums = [sums for sums in comparisons if sums.shadow and sums.requests]
    own_results = [_build_result(sums, own_sums, places) for sums in own_sums]
    own_results.sort(key=lambda result: (result.step or len(places) + 1, -(result.weight_share or 0)))
    return own_results, [_build_copy(sums, copied_sums, own_sums) for sums in copied_sums]


def _build_result(
    sums: ModelComparison, all_sums: Sequence[ModelComparison], places: Mapping[str, _Place]
) -> ModelResult:
    place = places.get(sums.model)
    share = sums.requests / sum(other.requests for other in all_sums)
    if place is None:
        return ModelResult(sums, share, None, None)
    ordinary = next((other for other in all_sums if other.model in place.main_names and other is not sums), None)
    return ModelResult(
        sums, share, place.step, place.weight_share, None if sums.model in place.main_names else ordinary
    )


def _build_copy(
    sums: ModelComparison, copied_sums: Sequence[ModelComparison], own_sums: Sequence[ModelComparison]
) -> ModelResult:
    """Compare a model that gets copies with the one that answered most of the route's requests."""
    share = sums.requests / sum(other.requests for other in copied_sums)
    return ModelResult(sums, share, None, None, max(own_sums, key=lambda other: other.requests, default=None))


def _list_places(route: RouteDetails) -> Mapping[str, _Place]:
    """Return the place of each model by its own and the providers' names; the first if several steps have it."""
    places: dict[str, _Place] = {}
    for served in route.served:
        step_models = [other for other in route.served if other.step == served.step]
        main_model = max(step_models, key=lambda other: other.weight)
        main_names = frozenset({main_model.model, *(channel.upstream_model for channel in main_model.channels)})
        place = _Place(served.step, served.weight / sum(other.weight for other in step_models), main_names)
        for name in {served.model, *(channel.upstream_model for channel in served.channels)}:
            places.setdefault(name, place)
    return places
