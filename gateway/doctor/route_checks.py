"""The check of models that channels of the configuration file map to other models."""

from collections.abc import Iterator

from gateway.config.loader import read_shipped_prices
from gateway.config.schema import Config
from gateway.doctor.finding import Finding
from gateway.routing.route_warnings import list_map_warnings


def check_maps(config: Config) -> Iterator[Finding]:
    """Warn of each known model that a channel maps to another known model."""
    shipped_prices = read_shipped_prices()
    maps = ((channel.name, dict(channel.model_map)) for channel in config.channel)
    for text in list_map_warnings(maps, lambda model: shipped_prices.find(model) is not None):
        yield Finding("routes", "warning", text, "Use a route: gateway routes --help")
