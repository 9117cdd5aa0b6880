"""What a provider keeps is named only by the account for which it was made, or on a channel that allows it."""

from typing import Any

import aiohttp
import orjson
import pytest

from gateway.server.context import SERVICES
from tests.server.handlers.test_response_owners import KEYS, respond, stream
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

USER = {"role": "user", "content": "repeat it"}
ITEM = {"type": "item_reference", "id": "msg_1"}
MESSAGE = {"type": "message", "id": "msg_9", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}


async def send(gateway: RunningGateway, who: str, path: str, **body: Any) -> tuple[int, str | None]:
    headers = {"Authorization": f"Bearer {KEYS[who]}", "Content-Type": "application/json"}
    raw = orjson.dumps({"model": "m", **body}).replace(b"item_ref", b"\\u0069tem_ref")
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(gateway.url + path, data=raw) as response,
    ):
        told = await response.read()
        return response.status, None if response.status < 400 else orjson.loads(told)["error"].get("param")


def accounts(*channels: Any) -> dict[str, Any]:
    return {
        "channel": list(channels),
        "account": [{"name": name} for name in KEYS],
        "key": [{"name": "k", "account": name, "secret": secret} for name, secret in KEYS.items()],
    }


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_item_is_named_by_the_account_for_which_it_was_made(
    gateway_with: StartGateway, streamed: bool
) -> None:
    first = stream("resp_1") if streamed else [answer(respond("resp_1"))]
    async with ScriptedUpstream(first, [answer(respond("resp_2"))]) as up, ScriptedUpstream([]) as other:
        gateway = await gateway_with(
            accounts(channel(up.base_url, "maker", priority=1), channel(other.base_url, "other"))
        )
        owners = gateway.app[SERVICES].routing.response_owners
        assert (await send(gateway, "ann", "/v1/responses", input="hi", stream=streamed))[0] == 200
        assert await send(gateway, "bob", "/v1/responses", input=[ITEM, USER]) == (404, "input[0]")
        await owners.close()
        owners._recent.clear()
        assert await send(gateway, "bob", "/v1/responses", input=[USER, ITEM]) == (404, "input[1]")
        told = MESSAGE | {"type": "reasoning", "id": "msg_1", "content": [], "summary": [{"text": "t"}]}
        assert await send(gateway, "bob", "/v1/responses", input=[told]) == (404, "input[0]"), "another account's"
        assert await send(gateway, "ann", "/v1/responses", input=[ITEM | {"id": "msg_7"}]) == (404, "input[0]")
        assert len(up.received) == 1, "no provider is asked"
        assert (await send(gateway, "ann", "/v1/responses", input=[ITEM, MESSAGE, USER]))[0] == 200
        assert (len(up.received), len(other.received)) == (2, 0), "the channel that has it is asked"


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/responses", {"input": "hi", "prompt": {"id": "pmpt_1"}}, "prompt", "prompt"),
    ("/v1/responses", {"input": "hi", "conversation": "conv_1"}, "conversation", "conversation"),
    ("/v1/chat/completions",
     {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-abc"}}]}]},
     "file_id", "messages[0].content[0].file.file_id"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": None, "audio": {"id": "audio_1"}}, USER]},
     "audio", "messages[0].audio"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "field", "where"), REFUSED)
async def test_what_was_made_elsewhere_needs_a_channel_that_allows_it(
    gateway_with: StartGateway, path: str, body: dict[str, Any], field: str, where: str
) -> None:
    made = respond("resp_1") if path == "/v1/responses" else COMPLETION
    async with ScriptedUpstream([answer(made)]) as up:
        gateway = await gateway_with(accounts(channel(up.base_url, "a")))
        assert await send(gateway, "ann", path, **body) == (404, where)
        assert not up.received
        allowing = await gateway_with(accounts(channel(up.base_url, "a", allow_fields=[field])))
        assert (await send(allowing, "ann", path, **body))[0] == 200
