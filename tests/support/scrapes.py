"""Scrapes of a gateway's metrics, read as Prometheus reads them."""

from collections.abc import Mapping

import aiohttp
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.gateway import RunningGateway


async def scrape(gateway: RunningGateway, **headers: str) -> dict[str, Metric]:
    """The families of a scrape."""
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/metrics", headers=headers) as response:
        assert response.status == 200
        parse = parse_openmetrics if "openmetrics" in response.content_type else text_string_to_metric_families
        return {family.name: family for family in parse(await response.text())}


def find_value(families: Mapping[str, Metric], name: str, **labels: str) -> float | None:
    """The sum of the samples ``name`` with these labels; None without any."""
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None
