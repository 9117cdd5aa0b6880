"""A response that a provider has stored is continued by the account that made it, and over the channel that did."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.kept_response import KeptResponse
from gateway.domain.response_owner import RETENTION_MS
from gateway.server.context import SERVICES
from tests.support.gateway import RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, LAST_CHUNK, SSE_HEAD, ScriptedUpstream, answer, chunk
from tests.support.started_gateways import StartGateway

PATH = "/v1/responses"
USER = {"role": "user", "content": "repeat it"}
ITEM = {"type": "item_reference", "id": "msg_1"}
MESSAGE = {"type": "message", "id": "msg_9", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
INFERENCE = InferenceRequest("responses", "m", {"input": "hi"})
KEYS = {"ann": "sk-Jd83kfLq02mzPw71", "bob": "sk-Xw92nvRt56bcHy38"}


def respond(response_id: str) -> dict[str, Any]:
    """A whole response; its id is not the first that is in it."""
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": '"id":"resp_other"'}]}
    usage = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
    return {"output": [message], "object": "response", "id": response_id, "status": "completed", "usage": usage}


def stream(response_id: str) -> list[Any]:
    reported: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": {**respond(response_id), "output": [], "status": "in_progress"}}),
        ("response.output_text.delta", {"item_id": "msg_1", "delta": "hi"}),
        ("response.completed", {"response": respond(response_id)}),
    ]
    events = [
        b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **say})) for kind, say in reported
    ]
    return [SSE_HEAD, *map(chunk, events), LAST_CHUNK]


class Site:
    """Two channels of one provider's kind, and two accounts that call them."""

    def __init__(self, gateway: RunningGateway, *ups: ScriptedUpstream) -> None:
        self.gateway, self.ups = gateway, ups

    async def ask(self, who: str, **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEYS[who]}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(self.gateway.url + PATH, json={"model": "m", "input": "hi", **more}) as response,
        ):
            raw = await response.read()
            return response.status, orjson.loads(raw) if response.content_type == "application/json" else raw

    async def get(self, who: str, path: str) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEYS[who]}"}
        async with self.gateway.client.get(self.gateway.url + path, headers=headers) as response:
            return response.status, await response.json()

    @property
    def asked(self) -> tuple[int, ...]:
        """How often each provider was."""
        return tuple(len(up.received) for up in self.ups)


@pytest.fixture
async def site(gateway_with: StartGateway) -> AsyncIterator[Site]:
    async with (
        ScriptedUpstream([answer(respond("resp_1"))], stream("resp_2")) as up,
        ScriptedUpstream([answer(respond("resp_5"))]) as other,
    ):
        config = {
            "channel": [channel(up.base_url, "maker", priority=1), channel(other.base_url, "other")],
            "account": [{"name": name} for name in KEYS],
            "key": [{"name": "k", "account": name, "secret": secret} for name, secret in KEYS.items()],
        }
        yield Site(await gateway_with(config), up, other)


async def test_who_made_a_response_goes_on_with_it_and_nobody_else(site: Site) -> None:
    assert (await site.ask("ann"))[0] == 200
    status, body = await site.ask("bob", previous_response_id="resp_1")
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "not_found", "previous_response_id")
    unknown = (await site.ask("bob", previous_response_id="resp_9"))[1]["error"]["message"]
    assert body["error"]["message"].split("(")[0].replace("resp_1", "resp_9") == unknown.split("(")[0]
    assert site.asked == (1, 0), "and no provider is asked"
    status, raw = await site.ask("ann", previous_response_id="resp_1", stream=True)
    assert status == 200
    assert b"resp_2" in raw
    assert site.asked == (2, 0)
    assert site.ups[0].received[1].json["previous_response_id"] == "resp_1"
    assert (await site.ask("bob", previous_response_id="resp_2"))[0] == 404


async def test_a_response_in_the_background_is_asked_for_in_the_foreground_and_charged_as_reported(site: Site) -> None:
    """A provider reports the usage of its own background response only to a client that asks for it later."""
    status, queued = await site.ask("ann", background=True)
    assert (status, queued["status"], queued["background"]) == (200, "queued", True)
    (row,) = await site.gateway.rows(1)
    assert (row.outcome, row.prompt_tokens, row.completion_tokens, row.usage_source) == ("completed", 3, 2, "upstream")
    assert "background" not in site.ups[0].received[0].json
    status, made = await site.get("ann", f"{PATH}/{queued['id']}")
    assert (status, made["id"], made["status"], made["background"]) == (200, queued["id"], "completed", True)
    assert (await site.get("bob", f"{PATH}/{queued['id']}"))[0] == 404
    status, refused = await site.ask("ann", Background=True)
    assert (status, refused["error"]["param"]) == (400, "Background")
    status, refused = await site.ask("ann", background=True, store=False)
    assert (status, refused["error"]["param"]) == (400, "background")
    assert site.asked == (1, 0)


async def test_a_response_that_goes_on_reserves_what_the_last_one_had_and_what_is_new(
    gateway_with: StartGateway,
) -> None:
    """Also after a restart; and the whole context window if the last one's usage is not known."""
    model, price = "gpt-5.1-codex", 10
    usage = {"input_tokens": 30_000, "output_tokens": 50, "total_tokens": 30_050}
    unknown = {name: value for name, value in respond("resp_3").items() if name != "usage"}
    script = [[answer({**respond("resp_1"), "usage": usage})], [answer({**respond("resp_2"), "usage": usage})],
              [answer({**respond("resp_3"), "usage": usage})], [answer({**unknown, "id": "resp_4"})]]  # fmt: skip
    async with ScriptedUpstream(*script, [answer(respond("resp_5"))]) as up:
        config = {
            "channel": [channel(up.base_url, "maker", models=[model])],
            "account": [{"name": "ann"}],
            "key": [{"name": "k", "account": "ann", "secret": KEYS["ann"], "quota_usd": 100}],
            "price": [{"model": model, "input_usd_per_million": price, "output_usd_per_million": price}],
        }
        site = Site(await gateway_with(config), up)
        owners = site.gateway.app[SERVICES].routing.response_owners

        async def reserve(before: str | None) -> int:
            more = {} if before is None else {"previous_response_id": before}
            status, body = await site.ask("ann", model=model, max_output_tokens=100, **more)
            assert status == 200, body
            rows = {row.id: row for row in await site.gateway.rows(len(up.received))}
            newest = max(rows.values(), key=lambda row: row.id)
            return newest.reserved_nanos // (1_000 * price)

        text = await reserve(None)
        assert await reserve("resp_1") == text + 30_050
        await owners.close()
        owners._recent_owners.clear()  # as after a restart
        assert await reserve("resp_2") == text + 30_050
        assert await reserve("resp_3") == text + 30_050
        assert await reserve("resp_4") == 400_000 + 100


async def test_what_a_model_says_makes_nobody_an_owner(site: Site) -> None:
    assert (await site.ask("ann"))[0] == 200
    for response_id in ("resp_other", "msg_1"):
        assert (await site.ask("ann", previous_response_id=response_id))[0] == 404


async def test_it_goes_to_the_channel_that_made_it_whichever_is_preferred_now(site: Site) -> None:
    assert (await site.ask("ann"))[0] == 200
    owners = site.gateway.app[SERVICES].routing.response_owners
    owners.record_owner("resp_elsewhere", (await _find_account(site, "ann")), "other")
    before = site.asked
    assert (await site.ask("ann", previous_response_id="resp_elsewhere"))[0] == 200
    assert site.asked == (before[0], before[1] + 1)
    owners.record_owner("resp_gone", (await _find_account(site, "ann")), "a channel that was removed")
    assert (await site.ask("ann", previous_response_id="resp_gone"))[0] == 404


async def _find_account(site: Site, name: str) -> int:
    return int((await site.gateway.app[SERVICES].auth.accounts.get_account(name))["id"])


async def test_owners_are_known_after_a_restart(site: Site) -> None:
    assert (await site.ask("ann"))[0] == 200
    owners = site.gateway.app[SERVICES].routing.response_owners
    await owners.close()
    owners._recent_owners.clear()
    assert (await site.ask("bob", previous_response_id="resp_1"))[0] == 404
    assert (await site.ask("ann", previous_response_id="resp_1", stream=True))[0] == 200
    await owners.close()
    now_ms = int(time.time() * 1000)
    assert await owners.sweep(now_ms) == 0
    assert await owners.sweep(now_ms + RETENTION_MS + 60_000) == 3, "two responses, and the item in both"


async def test_nobody_has_a_conversation_since_none_is_made_here(site: Site) -> None:
    for conversation in ("conv_1", {"id": "conv_1"}):
        status, body = await site.ask("ann", conversation=conversation)
        assert (status, body["error"]["param"]) == (404, "conversation")
    assert site.asked == (0, 0)


async def send(gateway: RunningGateway, who: str, path: str, **body: Any) -> tuple[int, str | None]:
    headers = {"Authorization": f"Bearer {KEYS[who]}", "Content-Type": "application/json"}
    raw = orjson.dumps({"model": "m", **body}).replace(b"item_ref", b"\\u0069tem_ref")
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(gateway.url + path, data=raw) as response,
    ):
        reported = await response.read()
        return response.status, None if response.status < 400 else orjson.loads(reported)["error"].get("param")


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
        owners._recent_owners.clear()
        assert await send(gateway, "bob", "/v1/responses", input=[USER, ITEM]) == (404, "input[1]")
        reported = MESSAGE | {"type": "reasoning", "id": "msg_1", "content": [], "summary": [{"text": "t"}]}
        assert await send(gateway, "bob", "/v1/responses", input=[reported]) == (404, "input[0]"), "another account's"
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
    ("/v1/chat/completions", {"messages": [USER], "modalities": ["text", "audio"],
     "audio": {"format": "wav", "voice": {"id": "voice_1"}}}, "voice", "audio.voice"),
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


async def test_a_deletion_that_is_given_up_loses_no_other_response(site: Site) -> None:
    """A client that leaves while its deletion waits for other writes does not cancel them, nor later deletions."""
    routing = site.gateway.app[SERVICES].routing
    kept, owners, ann = routing.kept_responses, routing.response_owners, await _find_account(site, "ann")
    kept.store_soon("resp_kept", ann, INFERENCE, orjson.dumps(respond("resp_kept")))
    owners.record_owner("resp_owned", ann, "one")
    gone = KeptResponse("resp_gone", ann, 0, RETENTION_MS, b"{}")
    leaving = [asyncio.create_task(kept.delete(gone)), asyncio.create_task(owners.forget("resp_gone"))]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    found = await kept.find("resp_kept", ann)
    assert found is not None
    await kept.delete(found)
    await owners.close()
    owners._recent_owners.clear()
    assert await owners.find("resp_owned", ann) is not None
