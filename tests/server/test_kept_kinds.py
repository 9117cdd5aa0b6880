"""Kept bodies of what is no plain request: background responses, lines of batches, sessions, forms and video jobs."""

import asyncio
import base64
import hashlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
import orjson
import pytest

from gateway.server.context import SERVICES
from gateway.server.kept_session import KeptSession
from gateway.server.realtime_session import ActiveRealtime
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import UNHURRIED, until
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.kept_requests import config, find_store, show
from tests.support.openai_videos import Play
from tests.support.realtime_provider import PRICES, Event, ProviderSession, RealtimeProvider
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, Step, answer, chat_script
from tests.support.secret_samples import SECRETS
from tests.support.started_gateways import StartGateway
from tests.support.video_gateway import open_video_gateway

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ENDED = {"completed", "failed", "cancelled", "ended"}
ALL_SECRETS = " ; ".join(SECRETS.values())
BACKGROUND: dict[str, Any] = {"model": "m", "input": ALL_SECRETS, "background": True}
PIECES = [ALL_SECRETS[at : at + 7] for at in range(0, len(ALL_SECRETS), 7)]
KEEP = {"requests": {"keep_bodies": "all"}}


def say(text: str) -> dict[str, Any]:
    return {**COMPLETION, "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


def find_left(shown: Any) -> list[str]:
    """The names of secrets that stand in what is shown."""
    content = orjson.dumps(shown).decode()
    return [name for name, secret in SECRETS.items() if orjson.dumps(secret)[1:-1].decode() in content]


@attrs.define
class Client:
    """A client of a gateway that keeps bodies."""

    gateway: RunningGateway

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[str, Any]:
        """The id of a request, and its answer."""
        lines = {"Authorization": f"Bearer {KEY}", **{name.replace("_", "-"): text for name, text in headers.items()}}
        url = self.gateway.url + path
        async with self.gateway.client.request(method, url, json=body, headers=lines) as response:
            content = await response.read()
            assert response.status == 200, content
            return str(response.headers.get("X-Request-Id")), orjson.loads(content)

    async def await_status(self, path: str, name: str = "status") -> Any:
        """The object at ``path`` once it has ended."""
        async with asyncio.timeout(30):
            while (value := (await self.call("GET", path))[1])[name] not in ENDED:  # noqa: ASYNC110 - as a client polls
                await asyncio.sleep(0.02)
        return value

    async def run_batch(self, lines: list[dict[str, Any]], **headers: str) -> list[str]:
        """The ids of the requests of a batch of chats, once it has ended."""
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", b"\n".join(map(orjson.dumps, lines)), filename="lines.jsonl")
        authorization = {"Authorization": f"Bearer {KEY}"}
        async with self.gateway.client.post(f"{self.gateway.url}/v1/files", data=form, headers=authorization) as made:
            file_id = (await made.json())["id"]
        fields = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        _, batch = await self.call("POST", "/v1/batches", fields, **headers)
        await self.await_status(f"/v1/batches/{batch['id']}")
        rows = await self.gateway.rows(len(lines))
        return [row.id for row in rows]


def line(text: str, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": "c", "method": "POST", "url": CHAT, "body": body, **more}


def responses_config(up: ScriptedUpstream, rule: str = "all") -> dict[str, Any]:
    """With a provider that speaks chats alone: the gateway itself runs what is in the background."""
    return {**config(up, rule), "channel": [channel(up.base_url, provider="mistral", **UNHURRIED)]}


async def test_a_background_response_is_kept_as_it_ended(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(say(f"Yours: {ALL_SECRETS}"))]) as up:
        client = Client(await gateway_with(responses_config(up)))
        request_id, queued = await client.call("POST", RESPONSES, BACKGROUND)
        assert queued["status"] == "queued"
        await client.await_status(f"{RESPONSES}/{queued['id']}")
        shown = await show(client.gateway, request_id)
        asked, answered = shown["bodies"]
        response = orjson.loads(answered["content"])
        assert (response["id"], response["status"], response["background"]) == (queued["id"], "completed", True)
        assert asked["messages"][0]["text"].startswith("[secret 1] ; [secret 2]")
        assert answered["answers"][0]["text"].startswith("Yours: [secret 1] ; [secret 2]")
        assert find_left(shown) == []
        store = find_store(client.gateway)
        assert store is not None
        assert (store.memory.used, store.open_requests) == (0, {})


async def test_a_background_response_that_fails_or_is_cancelled_is_kept(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()

    async def wait(_: Received) -> None:
        await gate.wait()

    scripts: list[list[Step]] = [[answer({"error": {"message": "no"}}, 400)], [wait]]
    async with ScriptedUpstream(*scripts) as up:
        client = Client(await gateway_with(responses_config(up, "errors")))
        for status in ("failed", "cancelled"):
            request_id, queued = await client.call("POST", RESPONSES, {**BACKGROUND, "input": status})
            path = f"{RESPONSES}/{queued['id']}"
            if status == "cancelled":
                await until(lambda: len(up.received) == 2)
                await client.call("POST", f"{path}/cancel")
            assert (await client.await_status(path))["status"] == status
            asked, answered, *failed = (await show(client.gateway, request_id))["bodies"]
            assert orjson.loads(asked["content"])["input"] == status
            assert orjson.loads(answered["content"])["status"] == status
            kinds = [(body["kind"], body["status"]) for body in failed]
            assert kinds == ([("provider_error", 400)] if status == "failed" else [])
        gate.set()


async def test_a_background_stream_is_kept_although_its_client_leaves(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script(*PIECES)) as up:
        client = Client(await gateway_with(responses_config(up)))
        headers = {"Authorization": f"Bearer {KEY}"}
        url, body = client.gateway.url + RESPONSES, {**BACKGROUND, "stream": True}
        async with client.gateway.client.post(url, json=body, headers=headers) as response:
            request_id = str(response.headers["X-Request-Id"])
            await response.content.readany()
            response.close()
        await client.gateway.rows(1)
        store = find_store(client.gateway)
        assert store is not None
        await until(lambda: not store.open_requests)
        shown = await show(client.gateway, request_id)
        assert shown["bodies"][1]["answers"][0]["text"].startswith("[secret 1] ; [secret 2]")
        assert find_left(shown) == []


async def test_lines_of_a_batch_are_kept_and_sent_again(gateway_with: StartGateway) -> None:
    scripts: list[list[Step]] = [[answer(say(f"Yours: {ALL_SECRETS}"))], [answer(say("again"))]]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with(config(up))
        (request_id,) = await Client(gateway).run_batch([line(f"Mine: {ALL_SECRETS}")])
        shown = await show(gateway, request_id)
        asked, answered = shown["bodies"]
        assert asked["messages"][0]["text"].startswith("Mine: [secret 1] ; [secret 2]")
        assert answered["answers"][0]["text"].startswith("Yours: [secret 1] ; [secret 2]")
        assert find_left(shown) == []
        office = AdminApi(gateway)
        key_id = (await office("GET", "/keys"))["data"][0]["id"]
        replay = {"key": key_id, "allow_redacted": True}
        compared = await office("POST", f"/requests/{request_id}/replay", replay)
        assert (compared["second"]["outcome"], compared["second"]["text"]) == ("completed", "again")
        assert up.received[1].json["messages"][0]["content"].startswith("Mine: [secret 1]")
        assert (await office("POST", "/bodies/delete", {"account": "acme"}))["requests"] == 1
        await show(gateway, request_id, 404)


@pytest.mark.parametrize(
    ("key_rule", "batch_header", "line_header", "kept"),
    [
        (None, None, None, True),
        (None, "no", None, False),
        (None, None, "no", False),
        ("none", "yes", "yes", False),
        ("on_request", None, None, False),
        ("on_request", "yes", None, True),
        ("on_request", None, "yes", True),
        ("on_request", "yes", "no", False),
        ("on_request", "no", "yes", True),
        ("on_request", None, 7, False),
    ],
)
async def test_key_batch_and_line_decide(
    gateway_with: StartGateway, key_rule: str | None, batch_header: str | None, line_header: Any, kept: bool
) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up, key_rule=key_rule))
        more = {} if line_header is None else {"headers": {"X-Gateway-Keep": line_header}}
        headers = {} if batch_header is None else {"x_gateway_keep": batch_header}
        (request_id,) = await Client(gateway).run_batch([line("hello", **more)], **headers)
        await show(gateway, request_id, 200 if kept else 404)


async def test_a_line_that_is_refused_is_kept_with_its_error(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"error": {"message": "no such thing"}}, 400)]) as up:
        gateway = await gateway_with(config(up, "errors"))
        client = Client(gateway)
        params = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]}
        _, batch = await client.call(
            "POST", "/v1/messages/batches", {"requests": [{"custom_id": "a", "params": params}]}
        )
        await client.await_status(f"/v1/messages/batches/{batch['id']}", "processing_status")
        (row,) = await gateway.rows(1)
        asked, answered, failed = (await show(gateway, row.id))["bodies"]
        assert orjson.loads(asked["content"]) == params
        assert orjson.loads(answered["content"])["type"] == "error"  # in the format of the client
        assert "no such thing" in failed["content"]


# Realtime sessions


@pytest.fixture
async def provider() -> AsyncIterator[RealtimeProvider]:
    async with RealtimeProvider() as started:
        yield started


def site(provider: RealtimeProvider, rule: str = "all", **key: Any) -> dict[str, Any]:
    keys = [{"name": "test", "account": "acme", "secret": KEY, **key}]
    return {
        "channel": [provider.channel()],
        "price": [{"model": "m", **PRICES}],
        "account": [{"name": "acme"}],
        "key": keys,
        "requests": {"keep_bodies": rule},
    }


class Session:
    """A client's realtime session, and the provider's end of it."""

    def __init__(self, socket: Any, upstream: ProviderSession) -> None:
        self.socket = socket
        self.up = upstream

    async def ask(self, event: Event) -> None:
        await self.socket.send_str(orjson.dumps(event).decode())

    async def read(self, kind: str) -> Event:
        async with asyncio.timeout(10):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.TEXT, message
        event: Event = orjson.loads(message.data)
        assert event["type"] == kind, event
        return event

    async def respond(self, response_id: str, pieces: list[str], audio: bytes = b"", status: str = "completed") -> None:
        """Let the provider answer a request for a response."""
        await self.ask({"type": "response.create"})
        await self.up.expect("response.create")
        await self.up.create(response_id)
        await self.read("response.created")
        place = {"response_id": response_id, "item_id": f"item_{response_id}", "output_index": 0, "content_index": 0}
        for piece in pieces:
            await self.up.send("response.output_audio_transcript.delta", **place, delta=piece)
            await self.read("response.output_audio_transcript.delta")
            if audio:
                sound = base64.b64encode(audio).decode()
                await self.up.send("response.output_audio.delta", **place, delta=sound)
                await self.read("response.output_audio.delta")
        await self.up.finish(response_id, status)
        await self.read("response.done")


async def hold_session(gateway: RunningGateway, provider: RealtimeProvider, play: Any, **headers: str) -> str:
    """The id of a session that has ended."""
    lines = {"Authorization": f"Bearer {KEY}", **headers}
    connect = gateway.client.ws_connect(f"{gateway.url}/v1/realtime?model=m", headers=lines, max_msg_size=2**25)
    async with connect as socket:
        upstream = await provider.accept()
        (request_id,) = map(str, gateway.app[SERVICES].active_requests.calls)
        await play(Session(socket, upstream))
    store = find_store(gateway)
    await until(lambda: not gateway.app[SERVICES].active_requests.calls)
    await until(lambda: store is None or not store.open_requests)
    return request_id


async def test_a_session_is_kept_with_the_events_of_both_sides(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))
    sound, spoken = bytes(range(256)) * 30, b"spoken" * 900
    sound_piece = base64.b64encode(sound).decode()

    async def play(session: Session) -> None:
        await session.ask({"type": "session.update", "session": {"instructions": "Be brief."}})
        await session.up.expect("session.update")
        for _ in range(3):
            await session.ask({"type": "input_audio_buffer.append", "audio": sound_piece})
            await session.up.expect("input_audio_buffer.append")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"Mine: {ALL_SECRETS}"}]}
        await session.ask({"type": "conversation.item.create", "item": item})
        await session.up.expect("conversation.item.create")
        transcribed = "conversation.item.input_audio_transcription.completed"
        await session.up.send(transcribed, item_id="i", content_index=0, transcript="Good morning")
        await session.read(transcribed)
        await session.respond("resp_1", PIECES, spoken)
        await session.respond("resp_2", ["and ", "again"])

    request_id = await hold_session(gateway, provider, play)
    shown = await show(gateway, request_id)
    asked, sent = shown["bodies"]
    assert (asked["kind"], sent["kind"], shown["loss"]) == ("request", "answer", None)
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert asked["messages"][1]["text"].startswith("Mine: [secret 1] ; [secret 2]")
    assert [message["text"] for message in sent["messages"]] == ["Good morning"]
    first, second = sent["answers"]
    assert first["text"].startswith("[secret 1] ; [secret 2]")
    assert (second["text"], second["finish_reason"]) == ("and again", "completed")
    assert (sent["prompt_tokens"], sent["completion_tokens"]) == (200, 100)
    assert find_left(shown) == []
    heard = [event for event in asked["content"].split("\n\n") if "input_audio_buffer.append" in event]
    assert len(heard) == 1
    assert (
        f"[media audio, 3 events, {len(sound) * 3:,} bytes, SHA-256 {hashlib.sha256(sound * 3).hexdigest()}]"
        in heard[0]
    )
    digest = hashlib.sha256(spoken * len(PIECES)).hexdigest()
    assert digest in sent["content"]
    assert len(sent["event_times_ms"]) == sent["content"].count("data: ")
    assert sent["event_times_ms"] == sorted(sent["event_times_ms"])
    assert sent["received_bytes"] > len(sent["content"])
    store = find_store(gateway)
    assert store is not None
    assert store.memory.used == 0
    rows = await gateway.rows(3)
    response_id = next(row.id for row in rows if row.client_request_id == request_id)
    assert request_id in (await show(gateway, response_id, 404))["error"]["message"]
    key_id = (await AdminApi(gateway)("GET", "/keys"))["data"][0]["id"]
    refused = await AdminApi(gateway)("POST", f"/requests/{request_id}/replay", {"key": key_id}, 409)
    assert "realtime session cannot be sent again" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("rule", "header", "status", "code"),
    [
        ("all", None, "completed", 200),
        ("all", "no", "completed", 404),
        ("none", "yes", "completed", 404),
        ("errors", None, "completed", 404),
        ("errors", None, "failed", 200),
    ],
)
async def test_the_same_switches_decide_about_sessions(
    gateway_with: StartGateway, rule: str, header: str | None, status: str, code: int
) -> None:
    async with RealtimeProvider() as provider:
        gateway = await gateway_with(site(provider, rule))

        async def play(session: Session) -> None:
            await session.respond("resp_1", ["hello"], status=status)

        headers = {} if header is None else {"x-gateway-keep": header}
        request_id = await hold_session(gateway, provider, play, **headers)
        await show(gateway, request_id, code)


async def test_a_long_session_holds_little_memory(
    gateway_with: StartGateway, provider: RealtimeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.kept_session.MAX_FRAME_BYTES", 20_000)
    gateway = await gateway_with(site(provider))
    sound = base64.b64encode(bytes(6_000)).decode()
    most_held = 0

    async def play(session: Session) -> None:
        nonlocal most_held
        store = find_store(gateway)
        assert store is not None
        for _ in range(60):
            await session.ask({"type": "input_audio_buffer.append", "audio": sound})
            await session.up.expect("input_audio_buffer.append")
            await until(lambda: store.memory.used < 40_000)
            most_held = max(most_held, store.memory.used)
        await session.ask({"type": "input_audio_buffer.commit"})
        await session.up.expect("input_audio_buffer.commit")

    request_id = await hold_session(gateway, provider, play)
    (asked,) = (await show(gateway, request_id))["bodies"]
    assert asked["received_bytes"] > 480_000 > 10 * most_held
    assert "60 events, 360,000 bytes" in asked["content"]
    store = find_store(gateway)
    assert store is not None
    assert store.memory.used == 0


@pytest.mark.parametrize("loss", ["size", "memory"])
async def test_too_much_of_a_session_is_noted(
    gateway_with: StartGateway, provider: RealtimeProvider, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr("gateway.server.kept_session.MAX_FRAME_BYTES", 500)
    if loss == "size":
        monkeypatch.setattr("gateway.server.kept_session.MAX_BODY_BYTES", 2_000)
    gateway = await gateway_with(site(provider))

    async def play(session: Session) -> None:
        store = find_store(gateway)
        assert store is not None
        if loss == "memory":
            store.memory.limit = 10
        for _ in range(9):
            await session.ask({"type": "input_audio_buffer.clear", "note": "x" * 900})
            await session.up.expect("input_audio_buffer.clear")
        (call,) = gateway.app[SERVICES].active_requests.calls.values()
        exchange = call.exchange if isinstance(call, ActiveRealtime) else None
        assert isinstance(exchange, KeptSession)
        await until(lambda: exchange.loss == loss)
        assert store.memory.used == 0
        await session.respond("resp_1", ["it goes on"])

    request_id = await hold_session(gateway, provider, play)
    shown = await show(gateway, request_id)
    assert (shown["loss"], shown["bodies"]) == (loss, [])
    store = find_store(gateway)
    assert store is not None
    assert store.memory.used == 0


async def test_a_session_that_ends_while_its_events_wait_for_the_thread_is_kept(
    gateway_with: StartGateway, provider: RealtimeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.kept_session.MAX_FRAME_BYTES", 0)
    gateway, is_free = await gateway_with(site(provider)), threading.Event()

    async def play(session: Session) -> None:
        store = find_store(gateway)
        assert store is not None
        store.prepare(lambda: is_free.wait(60))
        await session.ask({"type": "input_audio_buffer.clear"})
        await session.up.expect("input_audio_buffer.clear")

    request_id = await hold_session(gateway, provider, play)
    is_free.set()
    (asked,) = (await show(gateway, request_id))["bodies"]
    assert "input_audio_buffer.clear" in asked["content"]
    store = find_store(gateway)
    assert store is not None
    assert store.memory.used == 0


async def test_a_user_who_is_forgotten_during_a_session_is_not_kept(
    gateway_with: StartGateway, provider: RealtimeProvider
) -> None:
    gateway = await gateway_with(site(provider))

    async def play(session: Session) -> None:
        await session.respond("resp_1", ["hello"])
        await AdminApi(gateway)("POST", "/users/forget", {"user": "ann"})
        await session.respond("resp_2", ["again"])

    request_id = await hold_session(gateway, provider, play, **{"x-gateway-user": "ann"})
    await show(gateway, request_id, 404)
    store = find_store(gateway)
    assert store is not None
    assert store.memory.used == 0


# Forms and videos


async def test_the_fields_of_a_form_are_kept_and_its_files_only_by_name(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({"text": "hello there"})]) as up:
        gateway = await gateway_with(config(up))
        form = aiohttp.FormData({"model": "m", "prompt": f"Mine: {SECRETS['github']}"})
        form.add_field("file", b"RIFF0000WAVEfmt " + bytes(100), filename="a.wav", content_type="audio/wav")
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"{gateway.url}/v1/audio/transcriptions"
        async with gateway.client.post(url, data=form, headers=headers) as response:
            assert response.status == 200, await response.read()
            request_id = str(response.headers["X-Request-Id"])
        asked, answered = (await show(gateway, request_id))["bodies"]
        fields = orjson.loads(asked["content"])
        assert (fields["prompt"], fields["file"]) == ("Mine: [secret 1]", "[file a.wav, audio/wav, 116 bytes]")
        assert orjson.loads(answered["content"])["text"] == "hello there"


async def test_a_video_job_is_kept_with_its_end(gateway_with: StartGateway) -> None:
    prompt = f"A cat with {SECRETS['github']}"
    async with open_video_gateway(gateway_with, **KEEP) as videos:
        heard = await videos.submit(prompt)
        request_id, video_id = heard.headers["X-Request-Id"], heard.json["id"]
        await videos.finish(video_id)
        asked, answered, ended = (await show(videos.gateway, request_id))["bodies"]
        assert orjson.loads(asked["content"])["prompt"] == "A cat with [secret 1]"
        assert orjson.loads(answered["content"])["id"] == video_id
        assert orjson.loads(ended["content"])["status"] == "completed"
        assert SECRETS["github"] not in ended["content"]
        assert (await AdminApi(videos.gateway)("POST", "/bodies/delete", {"request": request_id}))["requests"] == 1
        await show(videos.gateway, request_id, 404)


async def test_with_errors_a_video_job_is_kept_only_if_it_fails(gateway_with: StartGateway) -> None:
    plays = {"fails": Play(polls=["failed"]), "waits": Play(polls=["queued"], hint_ms=600_000)}
    async with open_video_gateway(gateway_with, plays=plays, requests={"keep_bodies": "errors"}) as videos:
        heard = {prompt: await videos.submit(prompt) for prompt in ("a cat", "fails", "waits")}
        ids = {prompt: answer.headers["X-Request-Id"] for prompt, answer in heard.items()}
        store = find_store(videos.gateway)
        assert store is not None
        assert await store.read(ids["waits"]) is None  # its end is not known
        for prompt in ("a cat", "fails"):
            await videos.finish(heard[prompt].json["id"])
        await AdminApi(videos.gateway)("POST", f"/videos/{heard['waits'].json['id']}/cancel")
        asked, answered, ended = (await show(videos.gateway, ids["fails"]))["bodies"]
        assert orjson.loads(asked["content"])["prompt"] == "fails"
        assert orjson.loads(answered["content"])["status"] in {"queued", "in_progress"}
        assert orjson.loads(ended["content"])["status"] == "failed"
        for prompt in ("a cat", "waits"):
            await show(videos.gateway, ids[prompt], 404)
        assert (await store.describe()).requests == 3
        await store.sweep()
        assert (await store.describe()).requests == 1
        await show(videos.gateway, ids["fails"])


async def test_with_errors_nothing_is_kept_of_what_completes_later(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(say("one"))], [answer(say("two"))]) as up:
        client = Client(await gateway_with(responses_config(up, "errors")))
        (line_id,) = await client.run_batch([line("hello")])
        request_id, queued = await client.call("POST", RESPONSES, BACKGROUND)
        await client.await_status(f"{RESPONSES}/{queued['id']}")
        for ended_id in (line_id, request_id):
            await show(client.gateway, ended_id, 404)
        store = find_store(client.gateway)
        assert store is not None
        assert (store.memory.used, (await store.describe()).bytes) == (0, 0)
