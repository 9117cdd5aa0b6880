"""An OpenTelemetry receiver: it decodes what exporters post to ``/v1/traces``."""

import asyncio
import gzip
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import attrs
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.server.context import SERVICES
from tests.support.gateway import RunningGateway


@attrs.frozen
class Span:
    """A span as it was received; ids are hexadecimal, empty without a parent."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    error: str | None
    started_ns: int
    ended_ns: int
    attributes: dict[str, Any]


class OtlpReceiver:
    """``async with OtlpReceiver() as receiver``: listens at ``receiver.url``; ``status`` is what it answers."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.headers: Mapping[str, str] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def wait(self, gateway: RunningGateway, spans: int) -> list[Span]:
        """Return all spans once there are as many, in the order of their start."""
        exporter = gateway.app[SERVICES].tracing.exporter
        async with asyncio.timeout(15):
            while len(self.spans) < spans:
                await asyncio.to_thread(exporter.flush)
                await asyncio.sleep(0.01)
        return sorted(self.spans, key=lambda span: (span.started_ns, span.kind != 2))

    async def _receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        self.headers = request.headers.copy()
        if self.status != 200:
            return web.Response(status=self.status)
        message = ExportTraceServiceRequest.FromString(raw)
        for group in message.resource_spans:
            self.resource = _read(group.resource.attributes)
            self.spans += [_parse(span) for scope in group.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")


def _parse(span: Any) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.status.message if span.status.code == 2 else None,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _read(span.attributes),
    )


def _read(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
