"""Kept bodies: who has them kept, what is shown of them, and that nothing is left after their deletion."""

from pathlib import Path

import orjson
import pytest

from gateway.server.context import SERVICES
from gateway.server.kept_exchange import KeptExchange, SentAnswer, find_event_times
from tests.support.admin_calls import AdminApi
from tests.support.gateway import HELLO, KEY, channel
from tests.support.kept_requests import ask, config, find_store, say, show
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.secret_samples import SECRETS
from tests.support.started_gateways import StartGateway

SECRET = SECRETS["github"]


async def test_question_and_answer_are_shown_redacted(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        request_id = await ask(gateway, say(f"My token is {SECRET}, again {SECRET}; ann@example.com"))
        assert up.received[0].json["messages"][0]["content"].startswith(f"My token is {SECRET}")
        shown = await show(gateway, request_id)
        asked, answered = shown["bodies"]
        text = "My token is [secret 1], again [secret 1]; [mail 1]"
        assert orjson.loads(asked["content"])["messages"][0]["content"] == text
        assert orjson.loads(answered["content"])["choices"][0]["message"]["content"] == "hello"
        assert (asked["kind"], answered["kind"], shown["loss"]) == ("request", "answer", None)
        trail = await AdminApi(gateway).list_trail("bodies")
        assert trail == [("bodies.read", request_id, {})]
        status = await AdminApi(gateway)("GET", "/bodies")
        assert (status["requests"], status["lost"], status["problem"], status["waiting_bytes"]) == (1, 0, None, 0)


async def test_an_unchanged_body_is_kept_byte_by_byte(gateway_with: StartGateway) -> None:
    body = b'{ "model":"m",  "messages":[ {"role":"user","content":"\\u0041"} ] }'
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        async with gateway.client.post(f"{gateway.url}/v1/chat/completions", data=body, headers=headers) as response:
            request_id = response.headers["X-Request-Id"]
        assert (await show(gateway, request_id))["bodies"][0]["content"] == body.decode()


async def test_the_largest_size_is_that_of_one_body(
    gateway_with: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.kept_exchange.MAX_BODY_BYTES", 2_000)
    async with ScriptedUpstream(chat_script("x" * 1_200)) as up:
        gateway = await gateway_with(config(up))
        request_id = await ask(gateway, say("y" * 1_600) | {"stream": True})
        shown = await show(gateway, request_id)
        assert (shown["loss"], [body["kind"] for body in shown["bodies"]]) == (None, ["request", "answer"])
    async with ScriptedUpstream(chat_script("x" * 1_200, "z" * 900)) as up:
        gateway = await gateway_with(config(up))
        request_id = await ask(gateway, {**HELLO, "stream": True})
        assert (await show(gateway, request_id))["loss"] == "size"


async def test_a_stream_is_shown_put_together_and_raw(gateway_with: StartGateway) -> None:
    words = ["It is ", SECRET[:7], SECRET[7:20], SECRET[20:], " now"]
    async with ScriptedUpstream(chat_script(*words)) as up:
        gateway = await gateway_with(config(up))
        request_id = await ask(gateway, {**HELLO, "stream": True})
        _, answered = (await show(gateway, request_id))["bodies"]
        texts = {text["place"]: text["text"] for text in answered["texts"]}
        assert texts["choices.0.delta.content"] == "It is [secret 1] now"
        events = answered["content"].split("\n\n")
        assert len(answered["event_times_ms"]) == len(events) - 1 == len(words) + 2
        assert answered["event_times_ms"] == sorted(answered["event_times_ms"])
        assert answered["content"].endswith("data: [DONE]\n\n")


def test_an_event_has_the_time_of_its_last_byte() -> None:
    pieces = [b"data: a\n", b"\ndata: b\n\nda", b"ta: c\n\n"]
    sent = SentAnswer("text/event-stream", pieces, [1.0, 2.0, 3.5], 1.0)
    assert find_event_times(sent, b"".join(pieces)) == (1000, 1000, 2500)


async def test_errors_keeps_failed_requests_and_what_providers_said(gateway_with: StartGateway) -> None:
    refusal = {"error": {"message": f"bad {SECRET}"}}
    async with ScriptedUpstream([answer(COMPLETION)], [answer(refusal, 500)], [answer(COMPLETION)]) as up:
        settings = {"routing": {"max_attempts": 1, "trip_failures": 1000}}
        gateway = await gateway_with(config(up, "errors") | settings)
        fine, failed = await ask(gateway), await ask(gateway)
        assert "No bodies" in (await show(gateway, fine, 404))["error"]["message"]
        asked, answered, provider = (await show(gateway, failed))["bodies"]
        assert orjson.loads(asked["content"]) == HELLO
        assert "error" in orjson.loads(answered["content"])
        assert (provider["kind"], provider["status"], provider["channel"]) == ("provider_error", 500, "up")
        assert orjson.loads(provider["content"]) == {"error": {"message": "bad [secret 1]"}}
        store = find_store(gateway)
        assert store is not None
        assert store.memory.used == 0


@pytest.mark.parametrize(
    ("rule", "key_rule", "header", "kept"),
    [
        ("all", None, None, True),
        ("all", None, "no", False),
        ("all", None, "NO", False),
        ("all", None, "maybe", False),
        ("all", None, "yes", True),
        ("all", "none", None, False),
        ("all", "none", "yes", False),
        ("none", None, "yes", False),
        ("none", "all", None, True),
        ("none", "on_request", None, False),
        ("none", "on_request", "yes", True),
        ("none", "errors", "yes", True),
        ("errors", None, "yes", False),
        ("none", "sampled:0.000001", None, False),
        ("sampled:1", None, None, True),
    ],
)
async def test_gateway_key_and_client_decide(
    gateway_with: StartGateway, rule: str, key_rule: str | None, header: str | None, kept: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, rule, key_rule))
        request_id = await ask(gateway, **({} if header is None else {"x_gateway_keep": header}))
        await show(gateway, request_id, 200 if kept else 404)
        headers = {"Authorization": f"Bearer {KEY}"}
        async with gateway.client.get(f"{gateway.url}/v1/key", headers=headers) as response:
            assert (await response.json())["keep_bodies"] == (key_rule or rule)


async def test_nothing_is_opened_if_nothing_is_kept(gateway_with: StartGateway, tmp_path: Path) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], chat_script("a")) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        await ask(gateway)
        await ask(gateway, {**HELLO, "stream": True}, x_gateway_keep="yes")
        assert find_store(gateway) is None
        assert list(tmp_path.rglob("bodies")) == []


async def test_deleted_bodies_are_gone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        gateway = await gateway_with(config(up))
        office = AdminApi(gateway)
        first, second, third = [await ask(gateway, {**HELLO, "user": user}) for user in ("ann", "bob", "bob")]
        assert await office("POST", "/bodies/delete", {"user": "ann"}) == {"requests": 1, "pending": 0, "answers": 0}
        await show(gateway, first, 404)
        await show(gateway, second)
        assert (await office("POST", "/bodies/delete", {"request": second}))["requests"] == 1
        assert (await office("POST", "/users/forget", {"user": "bob"}))["bodies"] == 1
        await show(gateway, third, 404)
        assert (await office("GET", "/bodies"))["requests"] == 0
        refused = await office("POST", "/bodies/delete", {}, 400)
        assert "Name what to delete" in refused["error"]["message"]
        actions = [(action, detail) for action, _, detail in await office.list_trail("bodies") if "deleted" in action]
        ((account_id, requests),) = actions[0][1].pop("requests_by_account").items()
        assert (actions[0], account_id.isdigit(), requests) == (("bodies.deleted", {"requests": 1}), True, 1)
        assert [detail.get("request") for _, detail in actions] == [None, second, None]
        assert [detail["requests"] for _, detail in actions] == [1, 1, 1]


async def test_of_two_answers_no_wins(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, key_rule="all"))
        headers = [("x-gateway-keep", "yes"), ("x-gateway-keep", "no")]
        async with gateway.post(HELLO, headers=headers) as response:
            assert response.status == 200
            await response.read()
        assert find_store(gateway) is None


async def test_a_request_that_ends_after_its_key_keeps_nothing_is_not_kept(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        kept = await ask(gateway)
        store = find_store(gateway)
        assert store is not None
        close, closed = KeptExchange.close, []

        def close_late(exchange: KeptExchange) -> None:
            closed.append(exchange)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KeptExchange, "close", close_late)
            late = await ask(gateway)
        gateway.app[SERVICES].live_config.keep_bodies = None  # as an edit of the setting does
        close(closed[0])
        await show(gateway, late, 404)
        await show(gateway, kept)
        assert store.memory.used == 0


async def test_a_user_who_is_forgotten_while_a_client_still_reads_is_not_kept(gateway_with: StartGateway) -> None:
    """The request is settled then, and so no request that runs."""
    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        close, unread = KeptExchange.close, list[KeptExchange]()

        def close_late(exchange: KeptExchange) -> None:
            unread.append(exchange)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(KeptExchange, "close", close_late)
            late, other = [await ask(gateway, x_gateway_user=user) for user in ("ann", "ben")]
        await AdminApi(gateway)("POST", "/users/forget", {"user": "ann"})
        for exchange in unread:
            close(exchange)
        await show(gateway, late, 404)
        await show(gateway, other)
        store = find_store(gateway)
        assert store is not None
        assert (store.memory.used, store.open_requests) == (0, {})


async def test_bodies_of_a_deleted_account_are_gone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        office = AdminApi(gateway)
        await office("POST", "/accounts", {"name": "guests"}, 201)
        key = await office("POST", "/keys", {"name": "guest", "account": "guests"}, 201)
        gone = await ask(gateway, say("words of a guest"), authorization=f"Bearer {key['secret']}")
        kept = await ask(gateway)
        await show(gateway, gone)
        await office("DELETE", "/accounts/guests")
        await show(gateway, gone, 404)
        await show(gateway, kept)
        assert (await office("GET", "/bodies"))["requests"] == 1


async def test_a_switch_takes_effect_at_once(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 3) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url)]})
        office = AdminApi(gateway)
        await office("PUT", "/settings/requests/keep_bodies", {"value": "all"})
        kept = await ask(gateway)
        await office("PUT", "/settings/requests/keep_bodies", {"value": "none"})
        other = await ask(gateway)
        await show(gateway, kept)
        await show(gateway, other, 404)
        wrong = await office("PUT", "/settings/requests/keep_bodies", {"value": "sampled:2"}, 400)
        assert "sampled:0.05" in wrong["error"]["message"]


async def test_too_much_in_memory_is_noted_and_the_request_goes_on(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("a"), [answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        store = gateway.app[SERVICES].open_bodies()
        store.memory.limit = 10
        streamed, whole = await ask(gateway, {**HELLO, "stream": True}), await ask(gateway)
        for request_id in (streamed, whole):
            shown = await show(gateway, request_id)
            assert (shown["loss"], shown["bodies"]) == ("memory", [])
        assert store.memory.used == 0
        assert (await AdminApi(gateway)("GET", "/bodies"))["lost"] == 2


async def test_an_unwritable_folder_loses_bodies_and_no_request(gateway_with: StartGateway, tmp_path: Path) -> None:
    async with ScriptedUpstream(*[[answer(COMPLETION)]] * 2) as up:
        gateway = await gateway_with(config(up))
        folder = tmp_path / "data0" / "bodies"
        folder.write_text("not a folder")
        request_id = await ask(gateway)
        assert (await show(gateway, request_id))["loss"] == "disk"
        assert (await AdminApi(gateway)("GET", "/bodies"))["problem"]
        folder.unlink()
        request_id = await ask(gateway)
        assert (await show(gateway, request_id))["loss"] is None
        assert (await AdminApi(gateway)("GET", "/bodies"))["problem"] is None
