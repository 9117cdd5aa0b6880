"""Traces of a serving gateway, received by an OTLP receiver of the suite."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.installation import format_install_command
from tests.support.fault_scene import PRICE
from tests.support.gateway import HELLO, channel
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import ReadLog, StartGateway

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-00"
SERVER, CLIENT = 2, 3
"""Kinds of spans in the protocol."""


def site(receiver: OtlpReceiver, *ups: dict[str, Any], **tracing: Any) -> dict[str, Any]:
    return {"channel": list(ups), "price": [PRICE], "tracing": {"endpoint": receiver.url, **tracing}}


async def test_a_request_has_a_span_and_a_child_for_its_attempt(gateway_with: StartGateway) -> None:
    async with OtlpReceiver() as receiver, ScriptedUpstream(chat_script("good", "words")) as up:
        gateway = await gateway_with(site(receiver, channel(up.base_url), headers=["X-Team=us"]))
        headers = {"traceparent": SAMPLED, "tracestate": "vendor=1"}
        async with gateway.post(HELLO | {"stream": True}, headers=headers) as response:
            await response.read()
            request_id = response.headers["X-Request-Id"]
        request, attempt = await receiver.wait(gateway, 2)
        (row,) = await gateway.rows(1)
    assert (request.name, request.kind, attempt.name, attempt.kind) == ("chat m", SERVER, "chat m", CLIENT)
    assert (request.trace_id, request.parent_id) == (TRACE_ID, SPAN_ID)
    assert (attempt.trace_id, attempt.parent_id) == (TRACE_ID, request.span_id)
    assert request.started_ns <= attempt.started_ns <= attempt.ended_ns <= request.ended_ns
    assert (request.error, attempt.error) == (None, None)
    found = request.attributes
    assert (found["gen_ai.operation.name"], found["gen_ai.provider.name"]) == ("chat", "custom")
    assert (found["gen_ai.request.model"], found["gen_ai.response.model"]) == ("m", "m")
    assert found["gen_ai.usage.input_tokens"] == row.prompt_tokens > 0
    assert found["gen_ai.usage.output_tokens"] == row.completion_tokens > 0
    assert found["gen_ai.response.time_to_first_chunk"] >= 0
    assert (found["http.response.status_code"], found["gateway.request.id"]) == (200, request_id)
    assert (found["gateway.outcome"], found["gateway.channel"]) == ("completed", "up")
    assert found["gateway.cost_usd"] == row.cost_nanos / 10**9 > 0
    assert attempt.attributes["server.address"] == "127.0.0.1"
    assert attempt.attributes["http.response.status_code"] == 200
    asked = up.received[0].headers
    assert asked["traceparent"] == f"00-{TRACE_ID}-{attempt.span_id}-01"
    assert asked["tracestate"] == "vendor=1"
    assert receiver.resource["service.name"] == "model-gateway"
    assert receiver.headers["X-Team"] == "us"


async def test_each_attempt_has_a_span_of_its_own(gateway_with: StartGateway) -> None:
    async with (
        OtlpReceiver() as receiver,
        ScriptedUpstream([answer(b"down", 500)]) as bad,
        ScriptedUpstream([answer(COMPLETION)]) as up,
    ):
        ups = [channel(bad.base_url, "bad", priority=1), channel(up.base_url, "good", model_map={"m": "theirs"})]
        gateway = await gateway_with(site(receiver, *ups))
        async with gateway.post() as response:
            assert response.status == 200
        request, first, second = await receiver.wait(gateway, 3)
    assert request.parent_id == ""
    assert [first.parent_id, second.parent_id] == [request.span_id] * 2
    assert (first.error, first.attributes["error.type"]) == ("upstream_error", "upstream_error")
    assert (first.attributes["gateway.channel"], first.attributes["http.response.status_code"]) == ("bad", 500)
    assert (second.error, second.attributes["gateway.channel"]) == (None, "good")
    assert (second.name, request.name) == ("chat theirs", "chat m")
    assert bad.received[0].headers["traceparent"].split("-")[2] == first.span_id
    assert up.received[0].headers["traceparent"].split("-")[2] == second.span_id
    assert request.attributes["gateway.attempts"] == 2


@pytest.mark.parametrize(
    ("status", "body", "outcome", "error"),
    [(500, HELLO, "failed", "upstream_error"), (200, HELLO | {"model": "nothing"}, "refused", None)],
)
async def test_a_failure_is_an_error_and_a_refusal_is_none(
    gateway_with: StartGateway, status: int, body: dict[str, Any], outcome: str, error: str | None
) -> None:
    async with OtlpReceiver() as receiver, ScriptedUpstream([answer(COMPLETION, status)]) as up:
        gateway = await gateway_with(site(receiver, channel(up.base_url)))
        async with gateway.post(body) as response:
            assert response.status >= 400
        request = (await receiver.wait(gateway, 1))[0]
    assert (request.attributes["gateway.outcome"], request.error) == (outcome, error)
    assert request.attributes["error.type"]


async def test_what_is_not_sampled_is_not_exported(gateway_with: StartGateway) -> None:
    """A client that traces, but not this request: the provider learns the trace. Nobody traces: it learns nothing."""
    async with OtlpReceiver() as receiver, ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        gateway = await gateway_with(site(receiver, channel(up.base_url), sample_ratio=0))
        for headers in ({"traceparent": UNSAMPLED}, {}, {"traceparent": SAMPLED}):
            async with gateway.post(headers=headers) as response:
                assert response.status == 200
        spans = await receiver.wait(gateway, 2)
    assert {span.trace_id for span in spans} == {TRACE_ID}
    assert len(spans) == 2
    passed, nothing, _ = (request.headers for request in up.received)
    assert passed["traceparent"].startswith(f"00-{TRACE_ID}-")
    assert passed["traceparent"].endswith("-00")
    assert "traceparent" not in nothing


async def test_lines_of_the_log_name_the_trace(gateway_with: StartGateway, read_log: ReadLog) -> None:
    async with OtlpReceiver() as receiver, ScriptedUpstream([answer(b"down", 500)]) as up:
        config = site(receiver, channel(up.base_url), sample_ratio=0)
        gateway = await gateway_with({**config, "routing": {"max_attempts": 1}})
        for headers in ({"traceparent": SAMPLED}, {}):
            async with gateway.post(headers=headers) as response:
                assert response.status >= 500
        request, _ = await receiver.wait(gateway, 2)
    lines = [orjson.loads(line) for line in read_log().splitlines()]
    for event in ("attempt_failed", "request_settled"):
        traced, untraced = (line for line in lines if line["event"] == event)
        assert (traced["trace_id"], traced["span_id"]) == (TRACE_ID, request.span_id)
        assert "trace_id" not in untraced
    assert "reason" not in next(line for line in lines if line["event"] == "request_settled")


async def test_a_receiver_that_is_away_disturbs_no_request(gateway_with: StartGateway) -> None:
    async with OtlpReceiver(status=400) as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(receiver, channel(up.base_url)))
        async with gateway.post() as response:
            assert response.status == 200
        await gateway.rows(1)
        await gateway.stop()
    assert not receiver.spans


async def test_the_last_spans_are_sent_when_the_gateway_stops(gateway_with: StartGateway) -> None:
    async with OtlpReceiver() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(site(receiver, channel(up.base_url)))
        async with gateway.post() as response:
            assert response.status == 200
        await gateway.rows(1)
        await gateway.stop()
    assert len(receiver.spans) == 2


def run_fresh(code: str) -> str:
    """What a fresh process prints."""
    run = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(run, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]).stdout


START = """
    import asyncio, sys
    from pathlib import Path
    from tempfile import TemporaryDirectory
    {before}
    from gateway.app import open_runner
    from gateway.config.loader import ConfigError
    from gateway.config.schema import Config
    from gateway.options import AppOptions
    from gateway.parsing import parse_table
    from gateway.storage.data_folder import DataFolder

    async def start():
        with TemporaryDirectory() as folder:
            config = parse_table({config}, Config)
            options = AppOptions(config, DataFolder(Path(folder)), {{}}, discover=False)
            try:
                async with open_runner(options):
                    pass
            except ConfigError as error:
                print(error)

    asyncio.run(start())
    print([name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))])
"""


def test_nothing_is_imported_unless_it_is_on() -> None:
    assert run_fresh(START.format(before="", config={})).splitlines()[-1] == "[]"


def test_a_missing_extra_is_an_error_at_start_that_names_it() -> None:
    """As if the extra were not installed: the import finds nothing."""
    before = 'sys.modules["opentelemetry.sdk"] = None'
    message = run_fresh(START.format(before=before, config={"tracing": {"endpoint": "http://127.0.0.1:9"}}))
    assert format_install_command("tracing") in message
