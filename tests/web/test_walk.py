"""The walk of a call, as a caller sees it."""

from tests.conftest import StartGateway
from tests.fakes.gateway import HELLO, channels
from tests.fakes.upstream import COMPLETION, ScriptedUpstream, answer, chat_events, chat_script


async def test_a_json_call_is_answered_with_the_providers_bytes(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(channels([up]))
        async with gateway.post() as response:
            assert response.status == 200
            assert await response.json() == COMPLETION
            assert response.headers["X-Request-Id"].startswith("req_")
            assert "Server" not in response.headers
        (row,) = await gateway.rows(1)
        assert (row.ending, row.status, row.prompt_tokens, row.completion_tokens) == ("completed", 200, 5, 7)


async def test_a_stream_arrives_byte_for_byte_without_the_usage_frame(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a", "b", "c")) as up:
        gateway = await gateway_with(channels([up]))
        async with gateway.post({**HELLO, "stream": True}) as response:
            body = await response.read()
        events = chat_events("a", "b", "c")
        assert body == b"".join(events[:-2] + events[-1:])
        assert up.received[0].json["stream_options"] == {"include_usage": True}
        (row,) = await gateway.rows(1)
        assert (row.ending, row.prompt_tokens, row.usage_source) == ("completed", 5, "upstream")
