"""Receivers of sinks on real sockets: OTLP (spans and events), Langfuse, and webhooks."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import orjson
from aiohttp import web
from google.protobuf import json_format  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from standardwebhooks import Webhook

from gateway.config.sink_schema import SinkSpec
from gateway.parsing import parse_table

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
LANGFUSE_SECRET = "pk-lf-1:sk-lf-2"
KINDS = ("traces", "logs", "langfuse", "webhook")
MAX_PARSED = 40
"""Spans of a batch that is checked against the messages of OTLP, which takes long."""
_PATHS = {"traces": "/v1/traces", "logs": "/v1/logs", "langfuse": "", "webhook": "/hook"}


@attrs.define
class Taken:
    """A request as a receiver has it: its id, and its fields or attributes."""

    request_id: str
    values: dict[str, Any]


@attrs.define
class SinkReceiver:
    """A receiver at ``url``.

    Attributes:
        taken: every request that came, in order, also in batches that were answered with an error.
        accepted: those in batches that were answered with success.
        decide: returns the status of an answer from the ids of the batch; 0 cuts the connection.
        answer: the text of successful answers.
        keys: what a receiver that knows ids keeps: one entry for each span, event or request id.
        posts: the number of batches, by their ``webhook-id`` or, of others, their first request.
        headers: of the last batch.
        sizes: bytes of every batch.
    """

    url: str = ""
    taken: list[Taken] = attrs.Factory(list)
    accepted: list[Taken] = attrs.Factory(list)
    decide: Callable[[list[str]], int] = lambda _: 200
    answer: str = "{}"
    keys: set[str] = attrs.Factory(set)
    posts: Counter[str] = attrs.Factory(Counter)
    headers: dict[str, str] = attrs.Factory(dict)
    sizes: list[int] = attrs.Factory(list)

    def spec(self, kind: str = "webhook", **values: Any) -> SinkSpec:
        return parse_table(self.table(kind, **values), SinkSpec)

    def table(self, kind: str = "webhook", **values: Any) -> dict[str, Any]:
        """The ``[[sink]]`` of this receiver."""
        secret = {"webhook": SECRET, "langfuse": LANGFUSE_SECRET}.get(kind, "")
        sink_kind = kind if kind in {"langfuse", "webhook"} else "otlp"
        return {"name": kind, "kind": sink_kind, "url": self.url + _PATHS[kind], "secret": secret, **values}

    def list_ids(self) -> list[str]:
        return [taken.request_id for taken in self.taken]

    def list_accepted_ids(self) -> list[str]:
        return [taken.request_id for taken in self.accepted]

    async def wait(self, count: int, timeout_s: float = 60) -> None:
        """Wait until so many different requests were accepted."""
        async with asyncio.timeout(timeout_s):
            while len(set(self.list_accepted_ids())) < count:  # noqa: ASYNC110 - batches come from another process
                await asyncio.sleep(0.02)

    async def handle(self, request: web.Request) -> web.Response:
        raw = await request.read()
        self.headers = dict(request.headers)
        self.sizes.append(len(raw))
        batch, keys = _READERS[request.path](raw, request)
        self.posts[self.headers.get("webhook-id", batch[0].request_id)] += 1
        status = self.decide([taken.request_id for taken in batch])
        self.taken += batch
        if status in {0, 200}:
            self.keys |= keys
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if status == 200:
            self.accepted += batch
        return web.Response(status=status, text=self.answer if status == 200 else "not now")


@asynccontextmanager
async def open_receiver() -> AsyncIterator[SinkReceiver]:
    receiver = SinkReceiver()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


def _read_traces(raw: bytes, _request: web.Request) -> tuple[list[Taken], set[str]]:
    (group,) = orjson.loads(raw)["resourceSpans"]
    (scope,) = group["scopeSpans"]
    spans = scope["spans"]
    if len(spans) <= MAX_PARSED:  # refuses names and types that OTLP does not have
        json_format.Parse(raw, ExportTraceServiceRequest())
    return [_take(span) for span in spans], {span["traceId"] + span["spanId"] for span in spans}


def _read_logs(raw: bytes, _request: web.Request) -> tuple[list[Taken], set[str]]:
    (group,) = orjson.loads(raw)["resourceLogs"]
    (scope,) = group["scopeLogs"]
    records = scope["logRecords"]
    if len(records) <= MAX_PARSED:
        json_format.Parse(raw, ExportLogsServiceRequest())
    return [_take(record) for record in records], {record["traceId"] + record["spanId"] for record in records}


def _read_langfuse(raw: bytes, request: web.Request) -> tuple[list[Taken], set[str]]:
    assert request.headers["x-langfuse-ingestion-version"] == "4"
    assert request.headers["Authorization"] == "Basic cGstbGYtMTpzay1sZi0y"
    return _read_traces(raw, request)


def _read_webhook(raw: bytes, request: web.Request) -> tuple[list[Taken], set[str]]:
    event = Webhook(SECRET).verify(raw, dict(request.headers))
    assert event["type"] == "requests.settled"
    requests = event["data"]["requests"]
    return [Taken(fields["id"], fields) for fields in requests], {fields["id"] for fields in requests}


_READERS = {
    "/v1/traces": _read_traces,
    "/v1/logs": _read_logs,
    "/api/public/otel/v1/traces": _read_langfuse,
    "/hook": _read_webhook,
}


def _take(item: dict[str, Any]) -> Taken:
    values = {attribute["key"]: _read_value(attribute["value"]) for attribute in item["attributes"]}
    others = {name: value for name, value in item.items() if name != "attributes"}
    return Taken(values["gateway.request.id"], {**others, **values})


def _read_value(value: dict[str, Any]) -> Any:
    if not value:
        return None
    ((kind, inner),) = value.items()
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return [_read_value(item) for item in inner["values"]]
    if kind == "kvlistValue":
        return {item["key"]: _read_value(item["value"]) for item in inner["values"]}
    return inner
