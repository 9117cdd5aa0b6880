"""Loops: the same conversation again and again is refused, a conversation that goes on is not."""

import random
from typing import Any

import pytest

from gateway.domain.loop_rule import LoopRule
from gateway.errors import LoopDetected
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.proxy.loops import LoopGuard, digest_conversation
from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.console_people import make_administrator
from tests.support.gateway import CHAT, HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, FIN, ScriptedUpstream, Step, answer, chat_script
from tests.support.started_gateways import StartGateway

RULE = {"same_prompt": 5, "window_s": 300}
EMBEDDING = {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}], "model": "m"}


def config(up: ScriptedUpstream, **more: Any) -> dict[str, Any]:
    key = {"name": "test", "account": "acme", "secret": KEY, "loops": RULE, **more}
    return {"channel": [channel(up.base_url)], "key": [key]}


async def ask(gateway: RunningGateway, body: Any = HELLO, path: str = CHAT, **headers: str) -> int:
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.post(body, path, headers=lines) as response:
        await response.read()
        return int(response.status)


async def test_the_sixth_time_is_refused_and_no_provider_is_called(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        assert [await ask(gateway) for _ in range(5)] == [200] * 5
        async with gateway.post(HELLO) as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (429, "loop_detected")
            assert response.headers["x-should-retry"] == "false"
            assert 0 < int(response.headers["Retry-After"]) <= 300
        assert "5 times within 300 s" in error["message"]
        assert len(up.received) == 5
        longer = [*HELLO["messages"], {"role": "assistant", "content": "ok"}, {"role": "user", "content": "hi"}]
        assert await ask(gateway, {**HELLO, "messages": longer}) == 200
        assert await ask(gateway, x_gateway_session="another run") == 200
        assert await ask(gateway, {**HELLO, "user": "another user"}) == 200
        rows = await gateway.rows(9)
        assert [row.error_code for row in rows].count("loop_detected") == 1


async def test_streams_count_once_they_are_answered(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a")) as up:
        gateway = await gateway_with(config(up))
        assert [await ask(gateway, {**HELLO, "stream": True}) for _ in range(6)] == [*[200] * 5, 429]


async def test_what_failed_or_was_refused_does_not_count(gateway_with: StartGateway) -> None:
    failures: list[list[Step]] = [
        [answer({}, 500)],
        [answer({}, 429)],
        [answer({}, 503)],
        [FIN],
        [answer({"error": {}}, 400)],
    ] * 2
    async with ScriptedUpstream(*failures, [answer(COMPLETION)]) as up:
        others = [channel(up.base_url, f"up{number}") for number in range(len(failures))]  # one that failed may rest
        gateway = await gateway_with(
            {**config(up), "channel": others, "routing": {"max_attempts": 1, "trip_failures": 1000}}
        )
        codes = []
        for _ in failures:
            async with gateway.post(HELLO) as response:
                codes.append((await response.json())["error"]["code"])
        assert len(up.received) == len(failures)
        assert "loop_detected" not in codes
        assert await ask(gateway, {**HELLO, "model": "unknown"}) == 404
        assert [await ask(gateway) for _ in range(6)] == [*[200] * 5, 429]


async def test_a_rate_limit_is_no_loop(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, rpm=2))
        codes = []
        for _ in range(8):
            async with gateway.post(HELLO) as response:
                codes.append((await response.json()).get("error", {}).get("code"))
        assert codes == [None, None, *["rate_limit_exceeded"] * 6]


async def test_n_and_embeddings_are_no_loop(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 7, [answer(EMBEDDING)]) as up:
        gateway = await gateway_with(config(up))
        assert [await ask(gateway, {**HELLO, "n": 2}) for _ in range(7)] == [200] * 7
        embedding = {"model": "m", "input": "hi"}
        assert [await ask(gateway, embedding, "/v1/embeddings") for _ in range(7)] == [200] * 7


async def test_a_key_gets_and_loses_its_rule(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        office = AdminApi(gateway)
        key_id = (
            await office("POST", "/keys", {"account": "acme", "name": "agent", "loops": {"same_prompt": 2}}, 201)
        )["id"]
        assert (await office("GET", f"/keys/{key_id}"))["loops"] == {"same_prompt": 2, "window_s": 300}
        changed = await office("PATCH", f"/keys/{key_id}", {"loops": RULE})
        assert changed["loops"] == RULE
        assert (await office("PATCH", f"/keys/{key_id}", {"loops": None}))["loops"] is None
        wrong = await office("PATCH", f"/keys/{key_id}", {"loops": {"same_prompt": 1}}, 400)
        assert wrong["error"]["param"] == "loops.same_prompt"
        ada = await make_administrator(gateway)
        await office("PATCH", f"/keys/{key_id}", {"loops": RULE})
        _, page = await ada.open(f"/keys/{key_id}")
        assert "same_prompt" in page
        await ada.session.close()


async def test_a_key_without_a_rule_repeats_as_it_likes(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        assert [await ask(gateway) for _ in range(9)] == [200] * 9
        assert gateway.app[SERVICES].open_loop_guard.instance is None


GREETINGS = ("hi", "hello", "Summarize this", "What is this?", "continue", "go on", "fix the bug", "run the tests")
RESULTS = ("ok", "error: no such file", "42 passed", "", "done")


def make_conversation(rng: random.Random, number: int) -> list[list[dict[str, Any]]]:
    """The requests of a conversation: its user repeats himself, its tools find the same again and again."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": rng.choice(["You are helpful.", "Be brief."])}]
    requests = []
    for turn in range(rng.randint(1, 12)):
        messages = [*messages, {"role": "user", "content": rng.choice(GREETINGS)}]
        requests.append(messages)
        if rng.random() < 0.5:
            for step in range(rng.randint(1, 6)):
                call_id = f"call_{number}_{turn}_{step}"
                function = {"name": "run", "arguments": '{"command": "ls"}'}
                calls = [{"id": call_id, "type": "function", "function": function}]
                result = {"role": "tool", "tool_call_id": call_id, "content": rng.choice(RESULTS)}
                messages = [*messages, {"role": "assistant", "content": None, "tool_calls": calls}, result]
                requests.append(messages)
        messages = [*messages, {"role": "assistant", "content": rng.choice(RESULTS) or "ok"}]
    return requests


def digest(body: dict[str, Any], session: str = "") -> bytes:
    return digest_conversation(parse_chat_inference(body), 1, "", session)


def test_of_a_thousand_conversations_none_is_taken_for_a_loop() -> None:
    rng = random.Random(37)  # noqa: S311 - conversations, no secrets
    guard, rule, sent = LoopGuard(lambda: 0.0), LoopRule(**RULE), 0
    for number in range(1_000):
        for messages in make_conversation(rng, number):
            for _ in range(rng.choice([1, 1, 1, 2])):  # sometimes a user wants another answer
                guard._count(digest({"model": "m", "messages": messages}, f"session {number}"), rule)
                sent += 1
    assert sent > 8_000


def test_a_looping_agent_is_found_although_its_ids_change() -> None:
    guard, rule = LoopGuard(lambda: 0.0), LoopRule(**RULE)

    def make_request(number: int) -> bytes:
        call = {"id": f"call_{number}", "type": "function", "function": {"name": "run", "arguments": "{}"}}
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "ok"},
        ]
        return digest({"model": "m", "messages": messages})

    for number in range(5):
        guard._count(make_request(number), rule)
    with pytest.raises(LoopDetected):
        guard._count(make_request(5), rule)


def test_claude_codes_changing_header_and_cache_marks_are_no_difference() -> None:
    def ask_claude(number: int, tool_input: dict[str, Any]) -> bytes:
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {number}"},
            {"type": "text", "text": "Be kind."},
        ]
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": tool_input}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "ok"}
        marked = result | ({"cache_control": {"type": "ephemeral"}} if number % 2 else {})
        messages = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [marked]},
        ]
        body = {"model": "m", "max_tokens": 9, "system": system, "messages": messages}
        return digest_conversation(parse_messages_inference(body), 1, "", "")

    assert ask_claude(1, {"id": 7}) == ask_claude(2, {"id": 7})
    assert ask_claude(1, {"id": 7}) != ask_claude(1, {"id": 8}), "the arguments of a tool are no ids"


def test_a_window_moves_and_memory_is_bounded() -> None:
    now = [0.0]
    guard, rule = LoopGuard(lambda: now[0], max_conversations=10), LoopRule(2, 100)
    guard._count(b"a", rule)
    now[0] = 60
    guard._count(b"a", rule)
    with pytest.raises(LoopDetected) as refused:
        guard._count(b"a", rule)
    assert refused.value.retry_after_s == 40
    now[0] = 100
    guard._count(b"a", rule)
    for number in range(1_000):
        guard._count(b"%d" % number, rule)
    assert len(guard) == 10
