"""The metrics of a node of a cluster."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.domain.node import NodeFigures
from gateway.observability.exposition import build_gauge


def list_node_families(figures: NodeFigures, ledger_problems: int) -> Iterator[Metric]:
    """Yield the metrics of a node and its cluster. Only the leader checks the ledger (``ledger_problems``)."""
    yield build_gauge("gateway_live_nodes", "Live nodes of the cluster", figures.live)
    yield build_gauge("gateway_dead_nodes", "Nodes that were declared dead and have not come back", figures.dead)
    yield build_gauge("gateway_beat_age_seconds", "Time since the last beat that the store took", figures.beat_age_s)
    yield build_gauge("gateway_fenced", "1 if out of touch with the store: no request is taken", figures.fenced)
    yield build_gauge("gateway_leader", "1 if it does what one node of the cluster should do", figures.leads)
    name = "gateway_ledger_problems"
    yield build_gauge(name, "Differences in the ledger at the leader's last check", ledger_problems)
    config = GaugeMetricFamily("gateway_config_info", "1 for the digest of its configuration", labels=["digest"])
    config.add_metric([figures.config_digest], 1)
    yield config
