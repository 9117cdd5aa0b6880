"""The text of ``GET /metrics``."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector

from gateway import __version__
from gateway.observability.exposition import add_histogram, build_gauge, list_request_families, write_families
from gateway.observability.node_metrics import list_node_families
from gateway.observability.process_monitor import find_size
from gateway.proxy.active_requests import Phase, find_phase
from gateway.routing.channel_health import Health, find_health
from gateway.routing.load_balancer import LoadBalancer
from gateway.server.context import Services

if TYPE_CHECKING:  # only if there are sinks
    from gateway.sinks.service import SinkService


async def build_page(services: Services, accept: str) -> tuple[bytes, str]:
    """Return the text of all metrics and its media type. Only the formatting runs in a thread."""
    await services.metrics.count_all()
    open_videos = await services.videos.jobs.reservations.count_all_open()
    families: list[Metric] = []
    gauges = _list_gauges(services, open_videos)
    for family_group in (list_request_families(services.metrics), gauges, _list_process(services)):
        for family in family_group:
            families.append(family)
            await asyncio.sleep(0)
    return await asyncio.to_thread(partial(write_families, families, accept))


def _list_gauges(services: Services, open_videos: int) -> Iterator[Metric]:
    storage, proxy = services.storage, services.proxy
    active_requests = GaugeMetricFamily("gateway_active_requests", "Requests under way", labels=["phase"])
    phases = Counter(find_phase(call.context) for call in services.active_requests.calls.values())
    for phase in get_args(Phase):
        active_requests.add_metric([phase], phases[phase])
    yield active_requests
    yield build_gauge("gateway_active_attempts", "Attempts in progress, and requests that wait for one", proxy.running)
    queued_rows = len(storage.write_queue)
    yield build_gauge("gateway_unwritten_records", "Finished requests not in the database yet", queued_rows)
    failing = storage.write_queue.failing or storage.journal.failing
    yield build_gauge("gateway_store_failing", "1 if records cannot be stored", failing)
    set_aside_count = storage.unstorable.count
    yield build_gauge("gateway_records_set_aside", "Records that the database refused since the start", set_aside_count)
    limits = services.billing.shared_limits
    is_unreachable = limits is not None and not limits.sender.reached
    yield build_gauge(
        "gateway_rate_limits_away", "1 if the server of shared rate limits is not reached", is_unreachable
    )
    yield build_gauge("gateway_journal_bytes", "Size of the journal", find_size(services.admin.monitor.journal))
    yield build_gauge("gateway_open_video_jobs", "Video jobs that have not ended", open_videos)
    yield from _list_channels(services.routing.load_balancer)
    if services.sinks is not None:
        yield from _list_sinks(services.sinks)
    if storage.node is not None:
        check = services.billing.ledger_check
        yield from list_node_families(storage.node.figures, 0 if check is None else check.problem_count)


def _list_sinks(sinks: "SinkService") -> Iterator[Metric]:
    """Yield the lag of the sinks and how many requests they got or lost; in a cluster, only the leader has these."""
    lag = GaugeMetricFamily("gateway_sink_lag_seconds", "Age of the oldest undelivered request", labels=["sink"])
    delivered = CounterMetricFamily("gateway_sink_requests", "Requests that were delivered", labels=["sink"])
    lost = CounterMetricFamily("gateway_sink_lost_requests", "Requests that were not delivered", labels=["sink"])
    for sink in sinks.sinks:
        state = sink.worker.state
        if state is not None:  # the counters are stored: they never begin with 0 again
            lag.add_metric([state.name], state.find_lag_s(sinks.clock()))
            delivered.add_metric([state.name], state.delivered)
            lost.add_metric([state.name], state.lost)
    yield from (lag, delivered, lost)


def _list_channels(load_balancer: LoadBalancer) -> Iterator[Metric]:
    state = GaugeMetricFamily("gateway_channel_state", "1 for the state of the channel", labels=["channel", "state"])
    circuits = GaugeMetricFamily("gateway_open_circuits", "Open circuits, also of single models", labels=["channel"])
    running = GaugeMetricFamily("gateway_channel_active_attempts", "Attempts under way", labels=["channel"])
    queued = GaugeMetricFamily("gateway_channel_queued", "Requests that wait for a place", labels=["channel"])
    attempts = CounterMetricFamily("gateway_channel_attempts", "Attempts with a known outcome", labels=["channel"])
    failures = CounterMetricFamily("gateway_channel_failures", "Attempts that failed", labels=["channel"])
    for channel_state in load_balancer.channels.values():
        name = channel_state.channel.name
        health = find_health(channel_state, load_balancer)
        for health_state in get_args(Health):
            state.add_metric([name, health_state], health_state == health)
        circuits.add_metric([name], (channel_state.breaker.state != "closed") + len(channel_state.list_tripped()))
        running.add_metric([name], channel_state.running)
        if channel_state.queue is not None:
            queued.add_metric([name], len(channel_state.queue))
        attempts.add_metric([name], channel_state.calls)
        failures.add_metric([name], channel_state.failures)
    yield from (state, circuits, running, queued, attempts, failures)


def _list_process(services: Services) -> Iterator[Metric]:
    lag = HistogramMetricFamily(
        "gateway_event_loop_lag_seconds", "How late timers of the event loop are, sampled every second"
    )
    add_histogram(lag, (), services.admin.monitor.lag.histogram)
    yield lag
    overhead = HistogramMetricFamily(
        "gateway_overhead_seconds", "The gateway's own time for whole answers, from the read body to the answer"
    )
    add_histogram(overhead, (), services.metrics.overhead)
    yield overhead
    info = GaugeMetricFamily("gateway_build_info", "1; the label has the version", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    yield from ProcessCollector(registry=None).collect()
