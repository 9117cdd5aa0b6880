"""The calls of a soak: every endpoint of the public API, with many keys, and clients that leave."""

import asyncio
import collections
import io
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import attrs
import orjson

from scripts.soak_parts.marks import Marks
from tests.support.image_providers import draw
from tests.support.openai_audio import make_wav

Json = dict[str, Any]
LEAVE = 0.02
CALL_S = 180
"""A batch or a video is waited for as long."""
SOUND = make_wav(2.0, 48_000)
IMAGE = draw(512, 512)
LARGE = "word " * 300_000
REFUSALS = (401, 402, 403, 429)
"""What an operator who edits keys and accounts may bring upon a call."""
ENDS = {
    "chat": (b"data: [DONE]\n\n", b'data: {"error":'),
    "messages": (b"event: message_stop", b"event: error"),
    "responses": (b"event: response.completed", b"event: response.failed", b"event: error"),
}
"""A provider that breaks off a stream makes it end with an error."""

_ID = re.compile(r"[a-z]+_[0-9a-f]{20,}")


class Failed(Exception):
    """A call has not ended as planned; the text says how."""


class Refused(Exception):
    """A call was refused because of what its key or account may do now."""


def check_status(status: int, raw: bytes = b"") -> None:
    """Raises ``Failed`` or ``Refused`` for the status of an error."""
    if status in REFUSALS:
        raise Refused
    if status >= 400:
        raise Failed(f"status {status} {_ID.sub('', raw.decode(errors='replace'))[:160]}")


@attrs.define
class Site:
    """What all callers share.

    Attributes:
        url: of the gateway.
        secrets: of the keys that they call with.
        restarting: the gateway is killed, or has just been started again: calls break.
        done: how many calls of each kind ended as planned.
        failed: how many did not, by kind and reason.
    """

    url: str
    marks: Marks
    secrets: list[str] = attrs.Factory(list)
    restarting: bool = False
    done: collections.Counter[str] = attrs.Factory(collections.Counter)
    failed: collections.Counter[str] = attrs.Factory(collections.Counter)


@attrs.define
class Caller:
    """One client, which makes one call after the other, each with a key of its own choice."""

    site: Site
    session: aiohttp.ClientSession
    key: str = ""

    async def run(self, until: float, pause_s: float) -> None:
        """Call until the monotonic time ``until``, with random pauses of ``pause_s`` on average."""
        kinds, weights = zip(*KINDS.items(), strict=True)
        calls: list[Call] = list(kinds)
        while time.monotonic() < until:
            await self.make(random.choices(calls, weights)[0])
            await asyncio.sleep(random.uniform(0, 2 * pause_s))

    async def make(self, call: "Call") -> None:
        """One call, or the few that belong together."""
        site, name, restarted = self.site, call.__name__, self.site.restarting
        self.key = random.choice(site.secrets)
        try:
            async with asyncio.timeout(CALL_S):
                await call(self)
        except Refused:
            name = "refused"
        except (Failed, aiohttp.ClientError, TimeoutError) as error:
            if not restarted and not site.restarting:
                site.failed[f"{name}: {error if isinstance(error, Failed) else type(error).__name__}"] += 1
                return
            name = "broken by the kill"
        site.done[name] += 1

    async def ask(self, method: str, path: str, *, counted: bool = False, content_type: str = "", **more: Any) -> bytes:
        """Return the body of the answer; ``counted``: it must have a row. Raises ``Failed`` or ``Refused``."""
        mark = self.site.marks.begin()
        headers = {"Authorization": f"Bearer {self.key}", "X-Request-Id": mark}
        headers |= {"Content-Type": content_type} if content_type else {}
        async with self.session.request(method, self.site.url + path, headers=headers, **more) as response:
            raw = await response.read()
        check_status(response.status, raw)
        if counted:
            self.site.marks.answer(mark)
        return raw

    async def ask_json(self, method: str, path: str, **more: Any) -> Json:
        return dict(orjson.loads(await self.ask(method, path, **more)))

    async def converse(self, kind: str, path: str, body: Json) -> None:
        """Make a call in one of the chat formats; some streams are left after the first bytes."""
        stream = random.random() < 0.5
        if kind == "gemini":
            path += ":streamGenerateContent?alt=sse" if stream else ":generateContent"
        else:
            body["stream"] = stream
        mark = self.site.marks.begin()
        headers = {"Authorization": f"Bearer {self.key}", "X-Request-Id": mark}
        async with self.session.post(self.site.url + path, json=body, headers=headers) as response:
            if stream and response.status == 200 and random.random() < 2 * LEAVE:
                await response.content.readany()
                response.close()
                self.site.done["left half-way"] += 1
                self.site.marks.answer(mark)
                return
            raw = await response.read()
        check_status(response.status, raw)
        self.site.marks.answer(mark)
        if stream and not any(end in raw[-4000:] for end in ENDS.get(kind, (b"data: ",))):
            raise Failed("a stream without its end")


Call = Callable[[Caller], Awaitable[object]]


async def chat(caller: Caller) -> None:
    """Make a call in OpenAI's chat format."""
    hi = [{"role": "user", "content": "hi"}]
    await caller.converse("chat", "/v1/chat/completions", {"model": "m", "max_tokens": 100, "messages": hi})


async def messages(caller: Caller) -> None:
    """Make a call in Anthropic's format."""
    hi = [{"role": "user", "content": "hi"}]
    await caller.converse("messages", "/v1/messages", {"model": "m", "max_tokens": 100, "messages": hi})


async def gemini(caller: Caller) -> None:
    """Make a call in Gemini's format."""
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": {"maxOutputTokens": 100}}
    await caller.converse("gemini", "/v1beta/models/m", body)


async def kept_responses(caller: Caller) -> None:
    """Keep a response, continue it, and delete one of the two."""
    first = await caller.ask_json(
        "POST", "/v1/responses", counted=True, json={"model": "m", "input": "hi", "max_output_tokens": 100}
    )
    body = {"model": "m", "input": "go on", "previous_response_id": first["id"], "max_output_tokens": 100}
    await caller.converse("responses", "/v1/responses", body)
    await caller.ask("GET", f"/v1/responses/{first['id']}")
    if random.random() < 0.5:
        await caller.ask("DELETE", f"/v1/responses/{first['id']}")


async def large_chat(caller: Caller) -> None:
    """Send a prompt of 1.5 MB."""
    hi = [{"role": "user", "content": LARGE}]
    path = random.choice(["/v1/chat/completions", "/v1/messages"])
    body = io.BytesIO(orjson.dumps({"model": "m", "max_tokens": 100, "messages": hi}))
    await caller.ask("POST", path, counted=True, data=body, content_type="application/json")


async def embeddings(caller: Caller) -> None:
    """Ask for 50 embeddings."""
    body = {"model": "demo-embedding", "input": ["hello"] * 50}
    await caller.ask("POST", "/v1/embeddings", counted=True, json=body)


async def images(caller: Caller) -> None:
    """Have an image made or edited."""
    body = {"model": "demo-image", "prompt": "a tree", "size": "512x512"}
    if random.random() < 0.5:
        await caller.ask("POST", "/v1/images/generations", counted=True, json=body)
        return
    form = aiohttp.FormData(body)
    form.add_field("image", IMAGE, filename="image.png")
    await caller.ask("POST", "/v1/images/edits", counted=True, data=form)


async def speech(caller: Caller) -> None:
    """Have a text spoken."""
    body = {"model": "demo-speech", "voice": "alloy", "input": "Hi there", "response_format": "wav"}
    await caller.ask("POST", "/v1/audio/speech", counted=True, json=body)


async def transcription(caller: Caller) -> None:
    """Have a recording of 2 s transcribed."""
    form = aiohttp.FormData({"model": "demo-transcribe"})
    form.add_field("file", SOUND, filename="sound.wav")
    await caller.ask("POST", "/v1/audio/transcriptions", counted=True, data=form)


async def upload(caller: Caller, data: bytes, purpose: str) -> str:
    """Return the id of a new file."""
    form = aiohttp.FormData({"purpose": purpose})
    form.add_field("file", data, filename="lines.jsonl")
    return str((await caller.ask_json("POST", "/v1/files", data=form))["id"])


async def files(caller: Caller) -> None:
    """Upload a file, read it, and delete it."""
    file = await upload(caller, random.randbytes(500_000), "user_data")
    await caller.ask("GET", f"/v1/files/{file}/content")
    await caller.ask("DELETE", f"/v1/files/{file}")


async def batches(caller: Caller) -> None:
    """Run a batch of ten lines, and delete its files."""
    body = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
    lines = [
        {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(10)
    ]
    file = await upload(caller, b"\n".join(map(orjson.dumps, lines)), "batch")
    asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = await caller.ask_json("POST", "/v1/batches", json=asked)
    while batch["status"] in {"validating", "in_progress", "finalizing"}:
        await asyncio.sleep(0.5)
        batch = await caller.ask_json("GET", f"/v1/batches/{batch['id']}")
    for each in (file, batch.get("output_file_id"), batch.get("error_file_id")):
        if each is not None:
            await caller.ask("GET", f"/v1/files/{each}/content")
            await caller.ask("DELETE", f"/v1/files/{each}")


async def videos(caller: Caller) -> None:
    """Have a video made, download it, and delete it."""
    body = {"model": "demo-video", "prompt": "a lake", "size": "640x360", "seconds": "4"}
    video = await caller.ask_json("POST", "/v1/videos", json=body)
    while video["status"] in {"queued", "processing", "in_progress"}:
        await asyncio.sleep(0.5)
        video = await caller.ask_json("GET", f"/v1/videos/{video['id']}")
    await caller.ask("GET", f"/v1/videos/{video['id']}/content")
    await caller.ask("DELETE", f"/v1/videos/{video['id']}")


async def realtime(caller: Caller) -> None:
    """Open a realtime session for one response."""
    url, headers = f"{caller.site.url}/v1/realtime?model=demo-realtime", {"Authorization": f"Bearer {caller.key}"}
    try:
        async with caller.session.ws_connect(url, headers=headers) as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
            await socket.send_json({"type": "conversation.item.create", "item": item})
            await socket.send_json({"type": "response.create", "response": {}})
            async for message in socket:
                if b'"response.done"' in str(message.data).encode():
                    return
    except aiohttp.WSServerHandshakeError as error:
        check_status(error.status)
        raise
    if not caller.site.restarting:
        raise Failed("a session that ended before its response")


async def nonsense(caller: Caller) -> None:
    """Ask the provider that answers nonsense: any error will do."""
    body = {"model": "nonsense", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
    body["stream"] = random.random() < 0.5
    path = random.choice(["/v1/chat/completions", "/v1/messages", "/v1/responses"])
    if path.endswith("responses"):
        body = {"model": "nonsense", "input": "hi", "stream": body["stream"]}
    headers = {"Authorization": f"Bearer {caller.key}", "X-Request-Id": caller.site.marks.begin()}
    async with caller.session.post(caller.site.url + path, json=body, headers=headers) as response:
        await response.read()


async def refused(caller: Caller) -> None:
    """Make a call that is refused: an unknown key, a bad field, or a body that is no JSON."""
    unknown = (f"sk-{secrets.token_hex(16)}", b"{}")
    key, body = random.choice([unknown, *((caller.key, bad) for bad in (b'{"model": 1}', b"{" * 50_000, b""))])
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with caller.session.post(f"{caller.site.url}/v1/chat/completions", data=body, headers=headers) as response:
        await response.read()
    if not 400 <= response.status < 500:
        raise Failed(f"status {response.status}")


KINDS: dict[Call, float] = {
    chat: 40,
    messages: 15,
    gemini: 10,
    kept_responses: 8,
    large_chat: 1,
    embeddings: 4,
    images: 3,
    speech: 2,
    transcription: 2,
    files: 2,
    batches: 1,
    videos: 1,
    realtime: 2,
    nonsense: 2,
    refused: 3,
}
