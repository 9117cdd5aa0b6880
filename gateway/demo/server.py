"""The demo provider: a server of the OpenAI API on a loopback port."""

import asyncio
import contextlib
import hmac
import itertools
import secrets
import struct
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import orjson
from aiohttp import hdrs, web

from gateway.demo import chat as talk
from gateway.demo import completions, models
from gateway.demo import requests as asks
from gateway.demo import text as words
from gateway.demo.audio import DemoAudio
from gateway.demo.chat import DemoAnswer
from gateway.demo.images import FILES_PATH, DemoImages
from gateway.demo.realtime import DemoRealtime
from gateway.demo.replies import EVENT_STREAM, build_reply, parse_json
from gateway.demo.requests import DemoChatRequest, Json, RequestError
from gateway.demo.videos import DemoVideos
from gateway.frozen import frozen

_CREATED_S = 1_767_225_600  # creation date of the models; constant, so the listing never changes
_MAX_BODY_BYTES = 32 * 1024 * 1024  # enough for a few images as data URLs
_SHUTDOWN_S = 0.1  # short: a shutdown need not wait for the demo's answers

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class DemoUpstream:
    """A provider without an account: deterministic words, images, audio and videos over HTTP on 127.0.0.1.

    Args:
        pace_s: the pause between two streamed words, in seconds. The times of images and videos are proportional to it.
    """

    def __init__(self, *, pace_s: float = 0.03) -> None:
        self._pace_s = pace_s
        self._api_key = secrets.token_urlsafe(32)
        self._runner: web.AppRunner | None = None
        self._closers: tuple[Callable[[], None], ...] = ()
        self._stream_count = 0

    @property
    def base_url(self) -> str:
        """Return the address for clients. Raises ``RuntimeError`` before the server has started."""
        if self._runner is None or not self._runner.addresses:
            raise RuntimeError("The demo upstream has no address until it is started.")
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    @property
    def api_key(self) -> str:
        """Return the key that requests must carry, apart from those for image files. Each instance has its own key."""
        return self._api_key

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/embeddings", _serve_embeddings)
        completions.add_routes(app, pace_s=self._pace_s)
        app.router.add_get("/v1/models", _serve_models)
        app.router.add_get("/v1/models/{model:.+}", _serve_model)
        # One thread: the GIL allows no more, and each stream waits for at most one task.
        executor = ThreadPoolExecutor(1, thread_name_prefix="demo")
        images = DemoImages(executor, pace_s=self._pace_s)
        images.add_routes(app)
        DemoAudio(executor, pace_s=self._pace_s).add_routes(app)
        DemoVideos(pace_s=self._pace_s).add_routes(app)
        DemoRealtime(pace_s=self._pace_s).add_routes(app)
        self._closers = (images.close, lambda: executor.shutdown(wait=False, cancel_futures=True))
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S, handle_signals=False
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def stop(self) -> None:
        """Stop listening and abort open streams; a second call does nothing."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
            for close in self._closers:
                close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Reject requests without the key, unless for an image file. Convert errors to the OpenAI API's format."""
        authorization = request.headers.get(hdrs.AUTHORIZATION, "")
        needs_no_key = request.path.startswith(FILES_PATH)  # an image's address cannot be guessed
        if not needs_no_key and not hmac.compare_digest(
            authorization.encode(errors="replace"), f"Bearer {self._api_key}".encode()
        ):
            return build_reply(asks.build_error("Incorrect API key provided.", code="invalid_api_key"), status=401)
        try:
            return await handler(request)
        except RequestError as refusal:
            return build_reply(refusal.body, status=refusal.status)
        except web.HTTPException as error:
            message = f"{error.reason}: {request.method} {request.path}"
            code = "unknown_url" if error.status == web.HTTPNotFound.status_code else None
            return build_reply(asks.build_error(message, code=code), status=error.status)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        chat_request = asks.parse_chat(await parse_json(request))
        response = DemoResponse.create(chat_request)
        if not chat_request.stream:
            return build_reply(response.build_completion())
        self._stream_count += 1
        try:
            return await self._stream(request, response)
        finally:
            self._stream_count -= 1

    async def _stream(self, request: web.Request, provider_response: "DemoResponse") -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENT_STREAM)
        with contextlib.suppress(ConnectionResetError):  # the client has disconnected
            await response.prepare(request)
            for chunk in provider_response.list_chunks():
                await response.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
                await asyncio.sleep(self._pace_s)
            await response.write(b"data: [DONE]\n\n")
        return response


@frozen
class DemoResponse:
    """A completion in two forms: one object, or a stream of chunks."""

    id: str
    created_s: int
    chat_request: DemoChatRequest
    answers: tuple[DemoAnswer, ...]

    @classmethod
    def create(cls, chat_request: DemoChatRequest) -> "DemoResponse":
        answers = tuple(talk.build_answer(chat_request, index) for index in range(chat_request.choice_count))
        return cls(secrets.token_hex(12), int(time.time()), chat_request, answers)

    def build_completion(self) -> Json:
        choices = [self._build_choice(index, answer) for index, answer in enumerate(self.answers)]
        return {**self._build_head("chat.completion"), "choices": choices, "usage": self._build_usage()}

    def list_chunks(self) -> Iterator[Json]:
        """Yield the answer as the chunks of a stream; several choices alternate."""
        head = self._build_head("chat.completion.chunk")
        usage = {"usage": None} if self.chat_request.include_usage else {}
        turns = (self._list_deltas(index, answer) for index, answer in enumerate(self.answers))
        for turn in itertools.zip_longest(*turns):
            yield from ({**head, "choices": [choice], **usage} for choice in turn if choice is not None)
        if self.chat_request.include_usage:
            yield {**head, "choices": [], "usage": self._build_usage()}

    def _build_head(self, kind: str) -> Json:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": kind,
            "created": self.created_s,
            "model": models.CHAT_MODEL,
            "system_fingerprint": "fp_demo",
        }

    def _build_usage(self) -> Json:
        prompt, completion = talk.count_prompt_tokens(self.chat_request), sum(answer.tokens for answer in self.answers)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        }

    def _build_choice(self, index: int, answer: DemoAnswer) -> Json:
        message: Json = {"role": "assistant", "content": "".join(answer.pieces), "refusal": None}
        if answer.calls:
            message["content"] = None
            message["tool_calls"] = [
                {
                    "id": self._build_call_id(index, call_index),
                    "type": "function",
                    "function": {"name": call.name, "arguments": "".join(call.fragments)},
                }
                for call_index, call in enumerate(answer.calls)
            ]
        return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}

    def _list_deltas(self, index: int, answer: DemoAnswer) -> Iterator[Json]:
        """Yield one choice in steps: its role, its text or tool calls, and its finish reason."""
        yield _build_chunk_choice(
            index, {"role": "assistant", "content": None if answer.calls else "", "refusal": None}
        )
        yield from (_build_chunk_choice(index, {"content": piece}) for piece in answer.pieces)
        for call_index, call in enumerate(answer.calls):
            call_start = {"id": self._build_call_id(index, call_index), "type": "function"}
            yield _build_chunk_choice(
                index,
                {"tool_calls": [{"index": call_index, **call_start, "function": _build_function("", name=call.name)}]},
            )
            for fragment in call.fragments:
                yield _build_chunk_choice(
                    index, {"tool_calls": [{"index": call_index, "function": _build_function(fragment)}]}
                )
        yield _build_chunk_choice(index, {}, answer.finish_reason)

    def _build_call_id(self, index: int, call_index: int) -> str:
        return f"call_{self.id}_{index}_{call_index}"


def _build_function(arguments: str, **name: str) -> Json:
    return {**name, "arguments": arguments}


def _build_chunk_choice(index: int, delta: Json, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


async def _serve_embeddings(request: web.Request) -> web.Response:
    embedding_request = asks.parse_embedding(await parse_json(request))
    vectors = (words.build_vector(item, embedding_request.dimensions) for item in embedding_request.inputs)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encode_vector(vector) if embedding_request.base64 else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": embedding_request.tokens, "total_tokens": embedding_request.tokens}
    return build_reply({"object": "list", "model": models.EMBEDDING_MODEL, "data": data, "usage": usage})


def _encode_vector(vector: list[float]) -> str:
    """Return a vector in the OpenAI API's base64 form: little-endian 32-bit floats."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


async def _serve_models(_request: web.Request) -> web.Response:
    return build_reply({"object": "list", "data": [_build_model(model) for model in models.MODEL_NAMES]})


async def _serve_model(request: web.Request) -> web.Response:
    model = request.match_info["model"]
    if model not in models.MODEL_NAMES:
        raise asks.make_model_error(model)
    return build_reply(_build_model(model))


def _build_model(model: str) -> Json:
    return {"id": model, "object": "model", "created": _CREATED_S, "owned_by": "gateway-demo"}
