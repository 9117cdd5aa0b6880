"""A channel that serves what a request asks for comes before one that leaves it out."""

from typing import Any

import pytest

from tests.support.gateway import channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"logprobs": True}, True),
        ({"response_format": SCHEMA}, True),
        ({"tools": [{"type": "web_search"}]}, False),  # which no channel runs: priority decides
        ({}, False),
    ],
)
async def test_a_channel_that_leaves_nothing_out_comes_first(
    fields: dict[str, Any], whole: bool, gateway_with: StartGateway
) -> None:
    async with ScriptedUpstream([answer({}, 400)]) as claude, ScriptedUpstream([answer(COMPLETION)]) as chat:
        names: dict[str, Any] = {"model_map": {"m": "claude-3-haiku"}}
        rows = [channel(claude.base_url, provider="anthropic", priority=1, **names)]
        gateway = await gateway_with({"channel": [*rows, channel(chat.base_url, "chat")]})
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
        async with gateway.post(body) as response:
            assert response.status == (200 if whole else 400)
        assert bool(chat.received) == whole
        assert bool(claude.received) != whole
