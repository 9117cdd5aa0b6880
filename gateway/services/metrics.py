"""Open the metrics of finished requests."""

from gateway.observability.request_metrics import ModelNames, RequestMetrics
from gateway.server.context import Services


def open_metrics(services: Services) -> RequestMetrics:
    """Open the metrics; a job of ``gateway.services`` runs them."""
    load_balancer = services.routing.load_balancer

    def find_provider(channel: str) -> str:
        state = load_balancer.channels.get(channel)
        return "" if state is None else state.channel.provider

    ended = services.billing.settlement.ended
    return RequestMetrics(ended, ModelNames(services.routing.router).find_label, find_provider)
