"""What is probably wrong with a route, or with a ``model_map`` that stands where a route should."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from gateway.domain.model_name import normalize_name, split_release
from gateway.domain.route import Route
from gateway.routing.model_catalog import ModelCatalog


def list_route_warnings(route: Route, catalog: ModelCatalog) -> Iterator[str]:
    """Yield what is probably wrong: a model that the route hides, unknown channels, models that no channel serves."""
    if route.name not in route.models and any(
        is_certain for _, is_certain in catalog.list_serving_channels(route.name)
    ):
        yield f"The route {route.name!r} hides the model of its name, which none of its steps uses"
    names = [channel.name for channel in catalog.channels]
    for number, step in enumerate(route.steps, 1):
        where = f"Step {number} of the route {route.name!r}"
        unmatched_globs = [glob for glob in step.channels if not any(fnmatchcase(name, glob) for name in names)]
        yield from (f"{where}: no channel is called {glob!r}" for glob in unmatched_globs)
        for share in step.models:
            if not any(step.uses(channel.name) for channel, _ in catalog.list_serving_channels(share.model)):
                yield f"{where}: no channel of the step serves the model {share.model!r}"
        for model in step.shadow.models if step.shadow is not None else ():
            if not catalog.list_serving_channels(model):
                yield f"{where}: no channel serves the shadow model {model!r}"


def list_map_warnings(maps: Iterable[tuple[str, Mapping[str, str]]], is_known: Callable[[str], bool]) -> Iterator[str]:
    """Yield a warning for each known model that a channel maps to another known model.

    ``maps`` has channels with their ``model_map``.

    ``is_known`` returns whether a name is of a known model; an alias of the operator's own is none.
    """
    for channel, model_map in maps:
        for alias, upstream_model in model_map.items():
            if _find_model(alias) != _find_model(upstream_model) and is_known(alias) and is_known(upstream_model):
                yield (
                    f"The channel {channel!r} maps the model {alias!r} to another model, {upstream_model!r}: "
                    f"a route {alias!r} with the step {upstream_model!r} says so, and shows who answered"
                )


def _find_model(name: str) -> str:
    return split_release(normalize_name(name))[0]
