"""Opens the sinks, if the configuration has a ``[[sink]]``."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import aiohttp

from gateway.background import JobRunner
from gateway.config.extras import describe_missing_extra
from gateway.config.loader import ConfigError
from gateway.config.sink_schema import SinkSpec
from gateway.deferred import CreatedOnce
from gateway.domain.kept_body import BodyPart
from gateway.domain.request_log import RequestRecord
from gateway.routing.load_balancer import LoadBalancer
from gateway.services.base import BaseServices
from gateway.sinks.batch import DeliveryFailed, Send
from gateway.sinks.http_senders import OtlpSender, WebhookSender
from gateway.sinks.service import Sink, SinkService
from gateway.sinks.source import SETTLED_FOR_S, KeptBodies, SinkSource, matches
from gateway.sinks.worker import BUCKET_POLL_S, POLL_S, SinkWorker
from gateway.storage.media_location import parse_bucket
from gateway.storage.request_log import RequestLogRepository
from gateway.storage.sinks import LostRequests, SinkRepository

if TYPE_CHECKING:  # only if bodies are kept
    from gateway.storage.bodies.body_store import BodyStore


MAX_MOVE_WAIT_S = 600.0
"""How long after its settlement a request waits for its bodies while they are not in the shared store.

The same holds for a segment that cannot be read although the shared store answers.
"""
MAX_OUTAGE_WAIT_S = 86_400.0
"""How long after its settlement a request waits for a shared store that does not answer."""


def open_sinks(
    base: BaseServices,
    jobs: JobRunner,
    stack: AsyncExitStack,
    *,
    load_balancer: LoadBalancer,
    bodies: "CreatedOnce[BodyStore]",
) -> SinkService:
    """Open the sinks and start their workers; in a cluster, only the leader delivers. Raises ``ConfigError``."""
    storage, clock = base.storage, base.options.clock
    session = aiohttp.ClientSession()
    stack.push_async_callback(session.close)
    log, states = RequestLogRepository(storage.database), SinkRepository(storage.database)
    kept_bodies = _open_kept_bodies(base, bodies)
    sinks: list[Sink] = []
    for index, spec in enumerate(base.options.config.sink):
        send = _open_sender(index, spec, session, load_balancer, clock)
        source = SinkSource(log, _make_filter(spec), kept_bodies if spec.fields == "full" else None)
        poll_s = BUCKET_POLL_S if spec.kind == "bucket" else POLL_S
        worker = SinkWorker(spec.name, source, send, states, poll_s=poll_s, clock=clock)
        sinks.append(Sink(spec, worker))
        jobs.start(f"deliver_sink_{spec.name}", storage.deployment.run_once(worker.run))
    lost_requests = LostRequests({sink.spec.name: _make_filter(sink.spec) for sink in sinks}, clock)
    return SinkService(sinks, states, clock, lost_requests.count)


def _open_sender(
    index: int, spec: SinkSpec, session: aiohttp.ClientSession, load_balancer: LoadBalancer, clock: Callable[[], float]
) -> Send:
    if spec.kind == "webhook":
        return WebhookSender(spec, session, clock)
    if spec.kind != "bucket":
        return OtlpSender(spec, session, lambda channel: _find_provider(load_balancer, channel))
    try:
        from gateway.sinks.bucket_sender import BucketSender  # noqa: PLC0415 - obstore is an extra
    except ImportError as error:
        raise ConfigError([describe_missing_extra(f"sink[{index}].url", "s3")]) from error
    return BucketSender(spec.name, parse_bucket(spec.url))


def _find_provider(load_balancer: LoadBalancer, channel: str) -> str | None:
    state = load_balancer.channels.get(channel)
    return None if state is None else state.channel.provider


def _open_kept_bodies(base: BaseServices, bodies: "CreatedOnce[BodyStore]") -> KeptBodies:
    """Return the bodies of this gateway and, with a shared store, those of every node.

    Without a shared store, a body store that is not open stays closed: it keeps no bodies.
    """
    clock, is_shared = base.options.clock, bool(base.options.config.store.bodies_url)
    request_log = RequestLogRepository(base.storage.database)

    async def check_waited(request_id: str, max_wait_s: float, reason: str) -> None:
        """Raise ``DeliveryFailed`` if the request was settled at most ``max_wait_s`` ago."""
        for stored_request in await request_log.list_by_ids([request_id]):
            if clock() - stored_request.row.settled_ms / 1000 <= max_wait_s:
                raise DeliveryFailed(reason)

    async def read(request_id: str) -> Sequence[BodyPart]:
        if bodies.instance is None and not is_shared:
            return ()
        from gateway.storage.bodies import errors  # noqa: PLC0415 - as above

        try:
            kept_bodies = await bodies().read(request_id)
        except (errors.BodiesNotShared, errors.SegmentUnreadable) as error:
            await check_waited(request_id, MAX_MOVE_WAIT_S, f"bodies cannot be read in the shared store: {error}")
            return ()  # the node that has them is lost, or their segment
        except errors.BodiesOutOfReach:
            await check_waited(request_id, MAX_OUTAGE_WAIT_S, "the shared store of bodies does not answer")
            return ()
        except errors.BodiesUnreadable:  # damaged, or being deleted
            return ()
        return () if kept_bodies is None else kept_bodies[1]

    def is_running(request_id: str) -> bool:
        return bodies.instance is not None and request_id in bodies.instance.open_requests

    settled_for_s = SETTLED_FOR_S if base.storage.node is not None else 0.0
    return KeptBodies(read, is_running, clock, settled_for_s)


def _make_filter(spec: SinkSpec) -> Callable[[RequestRecord], bool]:
    return lambda row: matches(spec.filter, row)
