"""The providers of a soak: good ones in two API formats, one that breaks, one that answers nonsense, and the demo."""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any, Self

from gateway.demo.server import DemoUpstream
from tests.support import anthropic_cassettes as messages
from tests.support.scripted_upstream import (
    COMPLETION,
    FIN,
    LAST_CHUNK,
    RST,
    SSE_HEAD,
    Received,
    Script,
    ScriptedUpstream,
    Step,
    answer,
    chat_script,
    chunk,
    delta,
    event,
)

RARELY = 0.01
PACE_S = 0.002
LARGE = 2 * 1024 * 1024
WORDS = [f" word{index}" for index in range(40)]
CHAT_ANSWER: Script = [answer(COMPLETION)]
CHAT_STREAM: Script = [step for part in chat_script(*WORDS) for step in (part, PACE_S)]
MESSAGES_ANSWER: Script = [
    answer(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 5, "output_tokens": 7},
        }
    )
]
MESSAGES_EVENTS = [
    messages.begin("msg_1"),
    messages.start(0, "text", text=""),
    *(messages.text(0, word) for word in WORDS),
    messages.stop(0),
    messages.finish("end_turn", output_tokens=7),
    messages.STOP,
]
MESSAGES_STREAM: Script = [SSE_HEAD, *(step for part in MESSAGES_EVENTS for step in (chunk(part), PACE_S)), LAST_CHUNK]
BROKEN_OFF: Script = [SSE_HEAD, chunk(event(delta("half"))), FIN]
DOWN: tuple[Script, ...] = ([answer({"error": {"message": "on fire"}}, 500)], [RST])
NONSENSE: tuple[Script, ...] = (
    [b"\x16\x03\x01\x00\xa5 no HTTP at all\r\n\r\n", FIN],
    [b"HTTP/1.1 200 OK\r\nX-Long: " + b"a" * 200_000 + b"\r\n\r\n", FIN],
    [answer(b"<html>" + b"x" * LARGE, 502, content_type="text/html")],
    [answer(b'{"choices": [' + b'{"a": 1},' * 100_000 + b"]}")],
    [answer(b'{"choices": ' + b"[" * 50_000)],
    [answer({**COMPLETION, "padding": "x" * LARGE})],
    [answer({"error": {"message": "later"}}, 429, retry_after="1")],
    [answer({}, 302, location="http://169.254.169.254/")],
    [SSE_HEAD, chunk(b"data: " + b"x" * LARGE), FIN],
    [SSE_HEAD, chunk(b"data: [1, 2]\n\nevent: nonsense\n\n" * 100), LAST_CHUNK],
    [SSE_HEAD, chunk(event(delta("y" * LARGE))), LAST_CHUNK],
    [SSE_HEAD, b"zz\r\nno chunk\r\n", RST],
    *DOWN,
)


class Provider(ScriptedUpstream):
    """Answers whole or as a stream, as the request asks. While ``down`` is set, every answer is an error."""

    def __init__(self, whole: Script, stream: Script, *, rarely: Script | None = None) -> None:
        super().__init__([self._answer])
        self._whole, self._stream, self._rarely = whole, stream, rarely
        self.down = False

    async def _answer(self, _received: Received) -> None:
        """Stand for the script, which ``_play`` chooses for each request."""

    async def _play(
        self,
        step: Step,  # noqa: ARG002 - there is only one
        received: Received,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        self.received.clear()
        for part in self._choose(received):
            if not await super()._play(part, received, reader, writer):
                return False
        return True

    def _choose(self, received: Received) -> Script:
        if self.down:
            return random.choice(DOWN)
        if not (received.body and received.json.get("stream")):
            return self._whole
        return self._rarely if self._rarely and random.random() < RARELY else self._stream


class Nonsense(Provider):
    """Answers every request with something else that is wrong."""

    def __init__(self) -> None:
        super().__init__((), ())

    def _choose(self, received: Received) -> Script:  # noqa: ARG002 - nothing that it asks matters
        return random.choice(NONSENSE)


class Providers:
    """Every provider of a soak while the block runs; ``channels`` are the tables that name them."""

    def __init__(self) -> None:
        self.shaky = Provider(CHAT_ANSWER, CHAT_STREAM, rarely=BROKEN_OFF)
        self._scripted: dict[str, tuple[str, str, Provider]] = {
            "steady": ("nvidia", "m", Provider(CHAT_ANSWER, CHAT_STREAM)),
            "shaky": ("nvidia", "m", self.shaky),
            "translated": ("anthropic", "m", Provider(MESSAGES_ANSWER, MESSAGES_STREAM)),
            "nonsense": ("custom", "nonsense", Nonsense()),
        }
        self._demo = DemoUpstream(pace_s=PACE_S)
        self._stack = AsyncExitStack()
        self.channels: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        for name, (slug, model, provider) in self._scripted.items():
            await self._stack.enter_async_context(provider)
            fields = {"name": name, "provider": slug, "base_url": provider.base_url, "api_key": "k", "models": [model]}
            self.channels.append(fields)
        await self._demo.start()
        self._stack.push_async_callback(self._demo.stop)
        fields = {"name": "demo", "provider": "custom", "base_url": self._demo.base_url, "api_key": self._demo.api_key}
        self.channels.append({**fields, "models": ["demo-*"]})
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()
