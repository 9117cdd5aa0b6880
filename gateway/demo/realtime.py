"""The demo's Realtime API, ``/v1/realtime``: answers text and audio with words, and a beep for each word.

Speech is not detected: clients commit their audio and request the response.
"""

import asyncio
import contextlib
import itertools
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from attrs import define, field

from gateway.demo import chat as talk
from gateway.demo import models
from gateway.demo import requests as asks
from gateway.demo.requests import Json, RequestError
from gateway.demo.wav import SAMPLE_RATE, plan_speech

_MAX_FRAME_BYTES = 32 * 1024 * 1024
_MAX_ITEMS = 1_000
_INPUT_TOKENS_PER_SECOND, _OUTPUT_TOKENS_PER_SECOND = 10, 20
_SAMPLE_BYTES = 2
_AUDIO_TEXT = "(audio)"
"""The demo's transcript of any user audio."""
_ROLES = frozenset({"user", "assistant", "system"})


class DemoRealtime:
    """Serves Realtime sessions.

    Args:
        pace_s: the pause between two pieces of a response, in seconds.
    """

    def __init__(self, *, pace_s: float) -> None:
        self._pace_s = pace_s

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/v1/realtime", self._serve)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        model = request.query.get("model", "")
        if model != models.REALTIME_MODEL:
            raise asks.make_model_error(model)
        socket = web.WebSocketResponse(protocols=("realtime",), compress=False, max_msg_size=_MAX_FRAME_BYTES)
        await socket.prepare(request)
        session = _Session(socket, self._pace_s)
        try:
            await session.run()
        finally:
            session.cancel()
        return socket


@define(eq=False)
class _Session:
    socket: web.WebSocketResponse
    pace_s: float
    id: str = field(factory=lambda: f"sess_{secrets.token_hex(10)}")
    settings: Json = field(factory=dict)
    items: dict[str, Json] = field(factory=dict)
    audio_bytes: int = 0
    """Size of the audio buffer."""
    audio_tokens: int = 0
    """Tokens of audio in the conversation."""
    task: "asyncio.Task[None] | None" = None

    async def run(self) -> None:
        await self.send("session.created", session=self.describe())
        async for message in self.socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            event: Any = None
            try:
                event = orjson.loads(message.data)
                await self.handle(event if isinstance(event, dict) else {})
            except orjson.JSONDecodeError:
                await self.send_error("The event is not valid JSON.", None)
            except RequestError as error:
                cause = event.get("event_id") if isinstance(event, dict) else None
                await self.send_error(error.body["error"]["message"], cause, error.body["error"]["code"])

    def cancel(self) -> bool:
        """Cancel the running response. Return False if there is none."""
        return self.task is not None and self.task.cancel()

    async def send(self, kind: str, **fields: object) -> None:
        """Send one event; dropped if the client has disconnected."""
        if not self.socket.closed:
            event = {"type": kind, "event_id": f"event_{secrets.token_hex(10)}", **fields}
            with contextlib.suppress(ConnectionResetError):  # it is closing, and not yet closed
                await self.socket.send_str(orjson.dumps(event).decode())

    async def send_error(self, message: str, cause: object, code: str | None = None) -> None:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None, "event_id": cause}
        await self.send("error", error=error)

    def describe(self) -> Json:
        defaults = {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.id,
            "model": models.REALTIME_MODEL,
            "output_modalities": ["audio"],
            "instructions": "",
            "max_output_tokens": "inf",
            "audio": {
                "input": {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "turn_detection": None},
                "output": {"format": {"type": "audio/pcm", "rate": SAMPLE_RATE}, "voice": "marin"},
            },
        }
        return {**defaults, **self.settings}

    async def handle(self, event: Json) -> None:
        match event.get("type"):
            case "session.update":
                self.settings |= asks.get_typed(event, "session", dict, default={})
                await self.send("session.updated", session=self.describe())
            case "conversation.item.create":
                await self.add(asks.get_typed(event, "item", dict, default={}))
            case "input_audio_buffer.append":
                self.audio_bytes += _count_audio(asks.get_typed(event, "audio", str, default=""))
            case "input_audio_buffer.clear":
                self.audio_bytes = 0
                await self.send("input_audio_buffer.cleared")
            case "input_audio_buffer.commit":
                await self.commit()
            case "response.create":
                await self.respond(asks.get_typed(event, "response", dict, default={}))
            case "response.cancel":
                if not self.cancel():
                    raise RequestError(
                        "Cancellation failed: no active response found", code="response_cancel_not_active"
                    )
            case kind:
                raise RequestError(f"The demo does not know the event {str(kind)[:64]!r}.", code="invalid_value")

    async def add(self, item: Json) -> None:
        if len(self.items) >= _MAX_ITEMS:
            raise RequestError(f"The demo keeps at most {_MAX_ITEMS} items.")
        item = {"id": f"item_{secrets.token_hex(10)}", "object": "realtime.item", "status": "completed", **item}
        self.items[str(item["id"])] = item
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self.send(kind, previous_item_id=None, item=item)

    async def commit(self) -> None:
        """Add the buffered audio to the conversation as a user item. Raises ``RequestError`` if there is none."""
        if not self.audio_bytes:
            raise RequestError("The audio buffer is empty.", code="input_audio_buffer_commit_empty")
        self.audio_tokens += -(-self.audio_bytes * _INPUT_TOKENS_PER_SECOND // (SAMPLE_RATE * _SAMPLE_BYTES))
        self.audio_bytes = 0
        item_id = f"item_{secrets.token_hex(10)}"
        await self.send("input_audio_buffer.committed", previous_item_id=None, item_id=item_id)
        part = {"type": "input_audio", "transcript": _AUDIO_TEXT}
        await self.add({"id": item_id, "type": "message", "role": "user", "content": [part]})

    async def respond(self, settings: Json) -> None:
        if self.task is not None and not self.task.done():
            message = "Conversation already has an active response in progress"
            raise RequestError(message, code="conversation_already_has_active_response")
        response = _Response(self, {**self.describe(), **settings})
        await response.begin()
        self.task = asyncio.get_running_loop().create_task(response.run())

    def list_messages(self, instructions: str) -> list[Json]:
        """Return the conversation as chat messages; if the last one is not the user's, a user's greeting is added."""
        messages = [{"role": "system", "content": instructions}] if instructions else []
        messages += [
            {"role": item["role"], "content": _read_text(item)}
            for item in self.items.values()
            if item.get("role") in _ROLES
        ]
        return (
            messages
            if messages and messages[-1]["role"] == "user"
            else [*messages, {"role": "user", "content": "Hello"}]
        )


class _Response:
    def __init__(self, session: _Session, settings: Json) -> None:
        self._session = session
        self._speaks = "text" not in (settings.get("output_modalities") or ["audio"])
        limit = settings.get("max_output_tokens")
        body = {
            "model": models.CHAT_MODEL,
            "messages": session.list_messages(str(settings.get("instructions") or "")),
            "max_tokens": limit if isinstance(limit, int) else None,
        }
        chat_request = asks.parse_chat(body)
        self._prompt_tokens = talk.count_prompt_tokens(chat_request)
        self._audio_tokens = session.audio_tokens
        self._pieces = talk.build_answer(chat_request, 0).pieces
        self._sent_words: list[str] = []
        self._spoken_samples = 0
        self._id = f"resp_{secrets.token_hex(10)}"
        self._item_id = f"item_{secrets.token_hex(10)}"
        self._part_ids: Json = {
            "response_id": self._id, "item_id": self._item_id, "output_index": 0, "content_index": 0,
        }  # fmt: skip

    async def begin(self) -> None:
        await self._session.send("response.created", response=self._describe("in_progress"))

    async def run(self) -> None:
        session = self._session
        try:
            item = self._build_item("in_progress")
            await session.send("response.output_item.added", response_id=self._id, output_index=0, item=item)
            await session.send("conversation.item.added", previous_item_id=None, item=item)
            await session.send("response.content_part.added", **self._part_ids, part=self._build_part())
            await self._send_pieces()
            await self._send_end("completed")
        except asyncio.CancelledError:
            if not session.socket.closed:
                await self._send_end("cancelled")
            raise

    async def _send_pieces(self) -> None:
        send, text = self._session.send, "".join(self._pieces)
        if not self._speaks:
            for piece in self._pieces:
                self._sent_words.append(piece)
                await send("response.output_text.delta", **self._part_ids, delta=piece)
                await asyncio.sleep(self._session.pace_s)
            await send("response.output_text.done", **self._part_ids, text=text)
            return
        for piece, sound in itertools.zip_longest(self._pieces, self._speak(text)):
            if piece is not None:
                self._sent_words.append(piece)
                await send("response.output_audio_transcript.delta", **self._part_ids, delta=piece)
            if sound is not None:
                self._spoken_samples += len(sound) // _SAMPLE_BYTES
                await send("response.output_audio.delta", **self._part_ids, delta=b64encode(sound).decode())
            await asyncio.sleep(self._session.pace_s)
        await send("response.output_audio.done", **self._part_ids)
        await send("response.output_audio_transcript.done", **self._part_ids, transcript=text)

    @staticmethod
    def _speak(text: str) -> Iterator[bytes]:
        speech = plan_speech(text, "marin")
        return (speech.write(beep) for beep in speech.words)

    async def _send_end(self, status: str) -> None:
        item = self._build_item("completed" if status == "completed" else "incomplete")
        self._session.items[self._item_id] = item
        send = self._session.send
        await send("response.content_part.done", **self._part_ids, part=self._build_part())
        await send("response.output_item.done", response_id=self._id, output_index=0, item=item)
        await send("conversation.item.done", previous_item_id=None, item=item)
        await send("response.done", response=self._describe(status))

    def _build_part(self) -> Json:
        text = "".join(self._sent_words)
        return {"type": "output_audio", "transcript": text} if self._speaks else {"type": "output_text", "text": text}

    def _build_item(self, status: str) -> Json:
        content = [self._build_part()] if self._sent_words else []
        head = {"id": self._item_id, "object": "realtime.item", "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": content}

    def _describe(self, status: str) -> Json:
        reason = {"type": "cancelled", "reason": "client_cancelled"} if status == "cancelled" else None
        return {
            "object": "realtime.response",
            "id": self._id,
            "status": status,
            "status_details": reason,
            "output": [] if status == "in_progress" else [self._build_item(status)],
            "output_modalities": ["audio" if self._speaks else "text"],
            "max_output_tokens": "inf",
            "metadata": None,
            "usage": None if status == "in_progress" else self._count_usage(),
        }

    def _count_usage(self) -> Json:
        words, audio_output = len(self._sent_words), -(-self._spoken_samples * _OUTPUT_TOKENS_PER_SECOND // SAMPLE_RATE)
        text, audio_input = self._prompt_tokens, self._audio_tokens
        return {
            "total_tokens": text + audio_input + words + audio_output,
            "input_tokens": text + audio_input,
            "output_tokens": words + audio_output,
            "input_token_details": {
                "text_tokens": text,
                "audio_tokens": audio_input,
                "image_tokens": 0,
                "cached_tokens": 0,
                "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
            },
            "output_token_details": {"text_tokens": words, "audio_tokens": audio_output},
        }


def _read_text(item: Json) -> str:
    """Return the text of an item, including the transcript of its audio."""
    parts = item.get("content")
    if not isinstance(parts, list):
        return ""
    return "\n".join(str(part.get("text") or part.get("transcript") or "") for part in parts if isinstance(part, dict))


def _count_audio(text: str) -> int:
    """Return the size of audio in base64, in bytes. Raises ``RequestError`` if ``text`` is not base64."""
    try:
        return len(b64decode(text))
    except ValueError:
        raise RequestError("'audio' must be base64.", param="audio") from None
