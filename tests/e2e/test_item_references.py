"""Items that a request refers to by id, as the Vercel AI SDK does, over channels of every format."""

from typing import Any

import openai
import orjson
import pytest

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.providers import Call, Says
from tests.support.sdk_clients import MakeClient, ProviderType
from tests.support.started_gateways import StartGateway

ASK: Any = {"role": "user", "content": "What time is it?"}
TOOL: Any = {
    "type": "function",
    "name": "get_time",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "strict": False,
}
ACME, RIVAL = "sk-acme-1234567890", "sk-rival-1234567890"
KEYS = {
    "account": [{"name": "acme"}, {"name": "rival"}],
    "key": [{"name": "a", "account": "acme", "secret": ACME}, {"name": "b", "account": "rival", "secret": RIVAL}],
}


def refer(item: Any, **kind: str) -> Any:
    return {"id": item.id, **kind}


async def test_a_conversation_goes_on_by_references(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient
) -> None:
    call = Call("get_time", {"zone": "UTC"})
    async with provider_type(Says("Looking.", thought="Hm", calls=(call,)), Says("Noon."), Says("Bye.")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        client = sdk(gateway)
        first = await client.responses.create(model="m", input=[ASK], tools=[TOOL])
        (called,) = [one for one in first.output if one.type == "function_call"]
        result = {"type": "function_call_output", "call_id": called.call_id, "output": "12:00"}
        items = [ASK, *(refer(one, type="item_reference") for one in first.output), result]
        second = await client.responses.create(model="m", input=items, tools=[TOOL])
        assert second.output_text == "Noon."
        assert up.heard[1].messages == ("user: What time is it?", "assistant: Looking.")
        assert up.heard[1].results == (("get_time", "12:00"),)
        last = await client.responses.create(
            model="m", input=[*items, *map(refer, second.output), {"role": "user", "content": "Bye"}], tools=[TOOL]
        )
        assert last.output_text == "Bye."
        assert up.heard[2].messages[-2:] == ("assistant: Noon.", "user: Bye")
        assert [one for one in up.refusals if one != "Not found"] == []
        listed = [one async for one in client.responses.input_items.list(last.id, order="asc")]
        assert [one.type for one in listed].count("function_call") == 1
        assert all("item_reference" not in orjson.dumps(one.model_dump()).decode() for one in listed)


@pytest.mark.parametrize("key", [ACME, RIVAL])
async def test_an_item_that_is_not_the_accounts_is_named(key: str, gateway_with: StartGateway, sdk: MakeClient) -> None:
    """Neither another account's item nor one that was not kept nor an invented one."""
    async with AnthropicProvider(Says("A door.")) as up:
        gateway = await gateway_with({"channel": [up.channel()], **KEYS})
        stored = key is RIVAL
        made = await sdk(gateway, api_key=ACME).responses.create(model="m", input="What?", store=stored)
        (item,) = made.output
        invented = "msg_000000000000000000000000_0"
        for item_id in (str(item.id), invented):
            with pytest.raises(openai.NotFoundError, match=item_id) as caught:
                await sdk(gateway, api_key=key).responses.create(
                    model="m", input=[ASK, {"type": "item_reference", "id": item_id}]
                )
            assert (caught.value.param, caught.value.code) == ("input[1]", "not_found")
        assert len(up.received) == 1
