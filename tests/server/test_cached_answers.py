"""Answers that are given again: to whom, in which form, at what price, and what is asked of the provider."""

import asyncio
from typing import Any

import orjson
import pytest
from typing_extensions import override

from gateway.config.cache_schema import CacheSection
from gateway.request_context import RESUMABLE_HEADER, RequestContext
from gateway.server.answer_recorder import AnswerRecorder, CachePlan
from gateway.server.context import SERVICES
from gateway.server.internal_request import DiscardedStream
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import until
from tests.support.gateway import HELLO, KEY, RunningGateway, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    SSE_HEAD,
    Received,
    ScriptedUpstream,
    answer,
    chat_events,
    chat_script,
    chunk,
)
from tests.support.slow_readers import STORY, settle, unread
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-test-key-of-another-account"
PLAN = CachePlan("digest", "stream", 60, 60, CacheSection())
PRICE = {"model": "m", "input_usd_per_million": 1.0, "output_usd_per_million": 2.0}


def config(up: ScriptedUpstream, **cache: Any) -> dict[str, Any]:
    return {"channel": [channel(up.base_url)], "price": [PRICE], "cache": {"ttl_s": 600} | cache}


async def ask(gateway: RunningGateway, body: Any = HELLO, **headers: str) -> tuple[Any, str]:
    """The body of an answer, and where it came from."""
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    async with gateway.post(body, headers=lines) as response:
        content = await response.read()
        assert response.status == 200, content
        return content, response.headers.get("x-gateway-cache", "")


async def test_an_equal_request_gets_the_answer_again_for_nothing(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        first, second = await ask(gateway), await ask(gateway, {**HELLO, "user": "ann", "metadata": {"a": "b"}})
        assert (first[1], second[1]) == ("miss", "hit")
        assert first[0] == second[0]
        assert len(up.received) == 1
        bought, given = await gateway.rows(2)
        assert (bought.cache, bought.saved_nanos, given.cache, given.cost_nanos) == ("miss", 0, "hit", 0)
        assert given.saved_nanos == bought.cost_nanos > 0
        assert (given.attempts, given.channel, given.status) == (0, None, 200)
        assert (given.prompt_tokens, given.completion_tokens) == (bought.prompt_tokens, bought.completion_tokens)


async def test_a_hit_costs_its_share(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, hit_price=0.25))
        await ask(gateway)
        async with gateway.post() as response:
            await response.read()
            assert response.headers["x-gateway-cache"] == "hit"
            assert int(response.headers["Age"]) >= 0
            cost_usd = response.headers["x-gateway-cost-usd"]
        bought, given = await gateway.rows(2)
        assert given.cost_nanos == -(-bought.cost_nanos // 4) == round(float(cost_usd) * 1e9)
        assert given.cost_nanos + given.saved_nanos == bought.cost_nanos


async def test_nothing_is_given_again_by_default(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, ttl_s=0))
        for headers in ({}, {"Cache_Control": "max-age=3600"}, {}):
            assert (await ask(gateway, **headers))[1] == ""
        assert len(up.received) == 3
        assert gateway.app[SERVICES].open_answers.instance is None


@pytest.mark.parametrize("first", ["json", "stream", "usage"])
@pytest.mark.parametrize("second", ["json", "stream", "usage"])
async def test_an_answer_is_given_in_every_form(gateway_with: StartGateway, first: str, second: str) -> None:
    async with ScriptedUpstream(chat_script("hel", "lo")) as up, ScriptedUpstream([answer(COMPLETION)]) as whole:
        gateway = await gateway_with(config(whole if first == "json" else up))
        bodies = {
            "json": HELLO,
            "stream": {**HELLO, "stream": True},
            "usage": {**HELLO, "stream": True, "stream_options": {"include_usage": True}},
        }
        await ask(gateway, bodies[first])
        async with gateway.post(bodies[second]) as response:
            content, media_type = await response.read(), response.content_type
            assert response.headers["x-gateway-cache"] == "hit"
        text = ""
        usage = None
        if second == "json":
            assert media_type == "application/json"
            value = orjson.loads(content)
            text, usage = value["choices"][0]["message"]["content"], value["usage"]
        else:
            assert media_type == "text/event-stream"
            assert content.endswith(b"data: [DONE]\n\n")
            for line in content.split(b"\n\n")[:-2]:
                value = orjson.loads(line.removeprefix(b"data: "))
                usage = value.get("usage") or usage
                text += "".join(choice["delta"].get("content") or "" for choice in value["choices"])
        bought, given = await gateway.rows(2)
        assert text == "hello"
        assert (usage is None) == (second == "stream")
        if usage is not None:
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
                bought.prompt_tokens,
                bought.completion_tokens,
            )
        assert given.prompt_tokens == bought.prompt_tokens


@pytest.mark.parametrize(
    ("cache", "key_ttl", "header", "results"),
    [
        ({"ttl_s": 0, "request_ttl_s": 60}, None, "max-age=3600", ["miss", "hit"]),
        ({"ttl_s": 0, "request_ttl_s": 60}, None, None, ["", ""]),
        ({"ttl_s": 0, "request_ttl_s": 60}, 0, "max-age=3600", ["", ""]),
        ({"ttl_s": 0}, 60, None, ["miss", "hit"]),
        ({"ttl_s": 60}, 0, None, ["", ""]),
        ({"ttl_s": 60}, None, "no-store", ["", ""]),
        ({"ttl_s": 60}, None, "no-cache", ["miss", "miss"]),
        ({"ttl_s": 60}, None, "max-age=0, max-stale=7", ["miss", "miss"]),
        ({"ttl_s": 60}, None, "max-age=many", ["miss", "hit"]),
    ],
)
async def test_who_switches_the_cache_on(
    gateway_with: StartGateway, cache: dict[str, Any], key_ttl: int | None, header: str | None, results: list[str]
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        key = {"name": "test", "account": "acme", "secret": KEY} | ({} if key_ttl is None else {"cache_ttl_s": key_ttl})
        gateway = await gateway_with(config(up) | {"key": [key], "cache": cache})
        headers = {} if header is None else {"Cache_Control": header}
        assert [(await ask(gateway, **headers))[1] for _ in results] == results


async def test_an_answer_gets_too_old(gateway_with: StartGateway) -> None:
    now_s = 1_800_000_000.0
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, ttl_s=100), clock=lambda: now_s)
        assert (await ask(gateway))[1] == "miss"
        now_s += 50
        assert (await ask(gateway, Cache_Control="max-age=40"))[1] == "miss"
        now_s += 80
        async with gateway.post() as response:
            assert (response.headers["x-gateway-cache"], response.headers["Age"]) == ("hit", "80")
            await response.read()
        now_s += 20
        assert (await ask(gateway))[1] == "miss"
        assert len(up.received) == 3


@pytest.mark.parametrize("ttl_s", [0, 60])
async def test_only_if_cached_asks_no_provider(gateway_with: StartGateway, ttl_s: int) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, ttl_s=ttl_s))
        async with gateway.post(headers={"Cache-Control": "only-if-cached"}) as response:
            assert response.status == 504
            assert (await response.json())["error"]["code"] == "not_cached"
        assert up.received == []
        await ask(gateway)
        async with gateway.post(headers={"Cache-Control": "only-if-cached"}) as response:
            assert response.status == (200 if ttl_s else 504)
        rows = await gateway.rows(3)
        assert [row.cost_nanos for row in rows if row.outcome == "refused"] == [0] * (1 if ttl_s else 2)


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
DATA_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "is_cached"),
    [
        ({"temperature": 0.5, "seed": 7}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, DATA_IMAGE]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, IMAGE]}]}, False),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]}, False),
        ({"tools": [TOOL]}, False),
        ({"web_search_options": {}}, False),
        ({"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, False),
    ],
)
async def test_only_what_cannot_change_is_cached(
    gateway_with: StartGateway, fields: dict[str, Any], is_cached: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(
            {**config(up), "channel": [channel(up.base_url, allow_fields=["*"])], "cache": {"ttl_s": 60}}
        )
        body = {**HELLO, **fields}
        results = []
        for _ in range(2):
            async with gateway.post(body) as response:
                results.append(response.headers.get("x-gateway-cache", ""))
                await response.read()
        assert results == (["miss", "hit"] if is_cached else ["", ""])


async def test_requests_with_tools_are_cached_if_the_operator_says_so(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, tools=True))
        body = {**HELLO, "tools": [TOOL]}
        assert [(await ask(gateway, body))[1] for _ in range(2)] == ["miss", "hit"]


async def test_every_other_field_counts(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        await ask(gateway)
        for fields in ({"temperature": 0}, {"max_tokens": 5}, {"stop": ["a"]}, {"n": 1}, {"seed": 1}):
            assert (await ask(gateway, {**HELLO, **fields}))[1] == "miss"
        reordered = orjson.loads(orjson.dumps({"messages": HELLO["messages"], "model": "m"}))
        assert (await ask(gateway, reordered))[1] == "hit"


async def test_a_failed_answer_is_not_kept(gateway_with: StartGateway) -> None:
    refused = answer({"error": {"message": "no"}}, 400)
    cut = chat_script("hel")[:2]
    async with ScriptedUpstream([refused], [*cut, FIN], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up) | {"routing": {"max_attempts": 1, "trip_failures": 1000}})
        async with gateway.post() as response:
            assert response.status == 400
        async with gateway.post({**HELLO, "stream": True}) as response:
            assert b'"error"' in await response.read()
        assert (await ask(gateway))[1] == "miss"


@pytest.mark.parametrize("path", ["/forget", "/clear", "/delete", "/all", "/bodies", "/bodies of a request"])
async def test_what_is_deleted_is_not_given(gateway_with: StartGateway, path: str) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, scope="all"))
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "other"}, status=201)
        key = await admin("POST", "/keys", {"name": "k", "account": "other"}, status=201)
        headers = {"Authorization": f"Bearer {key['secret']}", "x-gateway-user": "ann"}
        async with gateway.post(headers=headers) as response:
            assert response.headers["x-gateway-cache"] == "miss"
            bought = response.headers["X-Request-Id"]
        assert (await ask(gateway))[1] == "hit"
        assert (await admin("GET", "/cache"))["answers"] == 1
        if path == "/forget":
            assert (await admin("POST", "/users/forget", {"user": "ann"}))["answers"] == 1
        elif path == "/clear":
            assert (await admin("POST", "/cache/clear", {"user": "bob"}))["answers"] == 0
            assert (await admin("POST", "/cache/clear", {"user": "ann", "account": "other"}))["answers"] == 1
        elif path == "/all":
            assert (await admin("POST", "/cache/clear", {}))["answers"] == 1
        elif path == "/bodies":
            await admin("POST", "/bodies/delete", {"user": "bob"})
            assert (await admin("GET", "/cache"))["answers"] == 1
            await admin("POST", "/bodies/delete", {"user": "ann", "account": "other"})
            assert (await admin("GET", "/cache"))["answers"] == 0
        elif path == "/bodies of a request":
            await admin("POST", "/bodies/delete", {"request": bought})
        else:
            await admin("DELETE", "/accounts/other?confirm=other")
        assert (await ask(gateway))[1] == "miss"
        assert len(up.received) == 2
        status = await admin("GET", "/cache")
        assert (status["hits"], status["joined"], status["misses"]) == (1, 0, 2)


async def test_accounts_and_keys_share_as_the_scope_says(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        for scope, expected in (("key", "miss miss miss"), ("account", "miss hit miss"), ("all", "miss hit hit")):
            secrets = [KEY, "sk-test-second-key-of-acme", OTHER_KEY]
            accounts = ["acme", "acme", "other"]
            keys = [
                {"name": f"k{number}", "account": account, "secret": secret}
                for number, (account, secret) in enumerate(zip(accounts, secrets, strict=True))
            ]
            owners = {"account": [{"name": "acme"}, {"name": "other"}], "key": keys}
            body = {**HELLO, "messages": [{"role": "user", "content": scope}]}
            gateway = await gateway_with(config(up, scope=scope) | owners)
            results = [(await ask(gateway, body, Authorization=f"Bearer {secret}"))[1] for secret in secrets]
            assert results == expected.split()
            await gateway.stop()


async def test_a_comment_before_an_event_takes_nothing_from_the_answer(gateway_with: StartGateway) -> None:
    first, *middle, last, done = chat_events("hel", "lo")
    comment = b": OPENROUTER PROCESSING\n\n"
    script = [SSE_HEAD, chunk(comment + first), *map(chunk, middle), chunk(last), chunk(comment + done), LAST_CHUNK]
    async with ScriptedUpstream(script) as up:
        gateway = await gateway_with(config(up))
        bought = await ask(gateway, {**HELLO, "stream": True})
        given = await ask(gateway, {**HELLO, "stream": True})
        whole = await ask(gateway)
        assert (bought[1], given[1], whole[1]) == ("miss", "hit", "hit")
        assert given[0] == bought[0].replace(comment, b"")
        assert orjson.loads(whole[0])["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("options", ["x", [1], 7])
async def test_options_of_a_stream_that_are_no_object_count_as_they_are(
    gateway_with: StartGateway, options: Any
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        body = {**HELLO, "max_tokens": 5, "stream_options": options}
        async with gateway.client.post(f"{gateway.url}/v1/messages", json=body) as response:
            assert response.status == 200, await response.read()
            assert response.headers["x-gateway-cache"] == "miss"


async def test_a_user_forgotten_while_its_request_waits_is_not_stored(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()

    async def wait(_: Received) -> None:
        await gate.wait()

    async with ScriptedUpstream([wait, answer({"error": {"message": "no"}}, 400)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        leading = asyncio.create_task(read_status(gateway, "bob"))
        await until(lambda: len(up.received) == 1)
        waiting = asyncio.create_task(read_status(gateway, "ann"))
        flights = gateway.app[SERVICES].open_answers().flights
        await until(lambda: [flight.waiting for flight in flights._flights.values()] == [1])
        await AdminApi(gateway)("POST", "/users/forget", {"user": "ann"})
        gate.set()
        assert (await leading, await waiting) == (400, 200)
        assert (await AdminApi(gateway)("GET", "/cache"))["answers"] == 0


async def test_a_user_forgotten_on_another_node_is_not_stored_here(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()

    async def wait(_: Received) -> None:
        await gate.wait()

    async with ScriptedUpstream([wait, answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        asking = asyncio.create_task(read_status(gateway, "ann"))
        await until(lambda: len(up.received) == 1)
        gateway.app[SERVICES].open_answers().delete_here(orjson.dumps([None, ["ann"]]).hex())
        gate.set()
        assert await asking == 200
        assert (await AdminApi(gateway)("GET", "/cache"))["answers"] == 0
        assert await read_status(gateway, "ann") == 200  # a later request is none of those
        assert (await AdminApi(gateway)("GET", "/cache"))["answers"] == 1


async def test_a_deletion_on_another_node_leaves_what_was_stored_later(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        assert await read_status(gateway, "ann") == 200
        admin, answers = AdminApi(gateway), gateway.app[SERVICES].open_answers()
        for before_ms, left in ((1, 1), (2**50, 0)):
            answers.delete_here(orjson.dumps([None, None, before_ms]).hex())
            await until(lambda: not answers._deletions)
            assert (await admin("GET", "/cache"))["answers"] == left


@pytest.mark.parametrize(
    ("scope", "named", "deleted"),
    [
        ("account", "request", 1),
        ("account", "key", 1),
        ("key", "key", 1),
        ("all", "request", 2),
        ("account", "unknown request", 2),
        ("account", "session", 2),
        ("account", "before all", 0),
        ("account", "before now", 2),
    ],
)
async def test_a_deletion_of_bodies_leaves_answers_that_cannot_be_of_them(
    gateway_with: StartGateway, scope: str, named: str, deleted: int
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, scope=scope))
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "other"}, status=201)
        key = await admin("POST", "/keys", {"name": "k", "account": "other"}, status=201)
        headers = {"Authorization": f"Bearer {key['secret']}"}
        async with gateway.post({**HELLO, "max_tokens": 3}, headers=headers) as response:
            bought = response.headers["X-Request-Id"]
        await ask(gateway)
        await gateway.rows(2)
        fields = {
            "request": {"request": bought},
            "unknown request": {"request": "req_unknown"},
            "key": {"key": key["id"]},
            "session": {"session": "s"},
            "before all": {"before": "2020-01-01T00:00:00Z"},
            "before now": {"before": "2200-01-01T00:00:00Z"},
        }[named]
        assert (await admin("POST", "/bodies/delete", fields))["answers"] == deleted
        assert (await admin("GET", "/cache"))["answers"] == 2 - deleted
        assert (await ask(gateway))[1] == ("hit" if deleted < 2 else "miss")
        trail = [detail["answers"] for action, _, detail in await admin.list_trail("cache") if "cleared" in action]
        assert trail == ([deleted] if deleted else [])


async def read_status(gateway: RunningGateway, user: str) -> int:
    async with gateway.post(headers={"x-gateway-user": user}) as response:
        await response.read()
        status: int = response.status
        return status


async def test_an_answer_from_the_cache_says_that_its_stream_is_not_resumable(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("hel", "lo")) as up:
        gateway = await gateway_with(config(up))
        for result, warns in (("miss", False), ("hit", True)):
            async with gateway.post({**HELLO, "stream": True}, headers={RESUMABLE_HEADER: "true"}) as response:
                await response.read()
                assert response.headers["x-gateway-cache"] == result
                assert (RESUMABLE_HEADER in response.headers.get("x-gateway-warning", "")) == warns
        async with gateway.post({**HELLO, "stream": True}, headers={RESUMABLE_HEADER: "maybe"}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, RESUMABLE_HEADER)


async def test_an_answer_too_large_to_keep_ends_the_wait_of_others(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.answer_recorder.MAX_ANSWER_BYTES", 100)
    gate = asyncio.Event()

    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events("hel", "lo")]
    async with ScriptedUpstream([SSE_HEAD, *events[:1], wait, *events[1:2], wait, *events[2:], LAST_CHUNK]) as up:
        gateway = await gateway_with(config(up))
        asking = asyncio.create_task(ask(gateway, {**HELLO, "stream": True}))
        await until(lambda: len(up.received) == 1)
        answers = gateway.app[SERVICES].open_answers()
        await until(lambda: not answers.flights._flights and answers.recorded_bytes == 0)
        gate.set()
        assert (await asking)[1] == "miss"


async def test_a_client_that_reads_slowly_holds_up_no_equal_request(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(STORY, chat_script("hel", "lo")) as up:
        gateway = await gateway_with(config(up))
        async with unread(gateway) as slow:
            await settle(up)
            waiting = asyncio.create_task(ask(gateway, {**HELLO, "stream": True}))
            given, result = await waiting
            assert (result, b"hel" in given, len(up.received)) == ("miss", True, 2)
            slow.close()


class StallingStream(DiscardedStream):
    """A client that reads, but each time only after a while."""

    @override
    async def drain(self) -> None:
        await asyncio.sleep(0.02)


async def test_many_short_stalls_end_the_wait_of_others_as_well(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.answer_recorder.MAX_STALL_S", 0.3)
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        answers = gateway.app[SERVICES].open_answers()
        flight = answers.flights.start("digest")
        recorder = AnswerRecorder(RequestContext("req_1"), gateway.app[SERVICES], answers, PLAN, flight)
        stream = recorder.wrap(StallingStream())
        joined = asyncio.create_task(flight.wait())
        while not joined.done():  # for ever, if each stall counted alone
            await stream.drain()
        assert (await joined, answers.flights.find("digest")) == (None, None)


async def test_a_key_that_is_disabled_during_a_fruitless_wait_buys_nothing(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()

    async def wait(_: Received) -> None:
        await gate.wait()

    async with ScriptedUpstream([wait, answer({"error": {"message": "no"}}, 400)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, scope="all"))
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "other"}, status=201)
        key = await admin("POST", "/keys", {"name": "k", "account": "other"}, status=201)
        leading = asyncio.create_task(read_status(gateway, "bob"))
        await until(lambda: len(up.received) == 1)
        headers = {"Authorization": f"Bearer {key['secret']}"}

        async def join() -> int:
            async with gateway.post(headers=headers) as response:
                assert "x-gateway-cache" not in response.headers
                status: int = response.status
                return status

        joining = asyncio.create_task(join())
        flights = gateway.app[SERVICES].open_answers().flights
        await until(lambda: [flight.waiting for flight in flights._flights.values()] == [1])
        await admin("PATCH", f"/keys/{key['id']}", {"status": "disabled"})
        gate.set()
        assert (await leading, await joining, len(up.received)) == (400, 401, 1)


async def test_an_error_is_no_miss(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"error": {"message": "no"}}, 400)]) as up:
        gateway = await gateway_with(config(up))
        async with gateway.post() as response:
            assert (response.status, response.headers.get("x-gateway-cache")) == (400, None)
