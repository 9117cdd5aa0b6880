"""``/v1/completions``: answers each prompt as a question to the chat model."""

import secrets
import time
from collections.abc import Iterator

from aiohttp import web

from gateway.demo import chat as talk
from gateway.demo.models import CHAT_MODEL
from gateway.demo.replies import EVENT_STREAM, build_event, build_reply, parse_json, pass_events, send_pieces
from gateway.demo.requests import (
    MAX_CHOICES,
    MAX_TOKENS,
    DemoChatRequest,
    Json,
    RequestError,
    get_integer,
    get_typed,
    parse_chat,
    parse_fields,
    parse_inputs,
)

_DEFAULT_MAX_TOKENS = 16
"""The OpenAI API's default of ``max_tokens``."""
_COPIED_FIELDS = ("model", "stop", "stream", "stream_options")


def add_routes(app: web.Application, *, pace_s: float) -> None:
    """Add the route. ``pace_s`` is the pause between two chunks, in seconds."""

    async def complete(request: web.Request) -> web.StreamResponse:
        fields = parse_fields(await parse_json(request), CHAT_MODEL)
        chat_requests, echo = _parse_chat_requests(fields), get_typed(fields, "echo", bool, default=False)
        copy_count = get_integer(fields, "n", MAX_CHOICES) or 1
        if len(chat_requests) * copy_count > MAX_CHOICES:
            raise RequestError(f"The demo makes at most {MAX_CHOICES} answers a request.", param="n")
        answers = [
            (chat_request, talk.build_answer(chat_request, copy))
            for chat_request in chat_requests
            for copy in range(copy_count)
        ]
        if not chat_requests[0].stream:
            return build_reply(_build_whole(answers, echo=echo))
        chunks = pass_events(_build_chunks(answers, echo=echo))
        return await send_pieces(request, chunks, headers=EVENT_STREAM, pace_s=pace_s)

    app.router.add_post("/v1/completions", complete)


def _parse_chat_requests(fields: Json) -> list[DemoChatRequest]:
    limit = get_integer(fields, "max_tokens", MAX_TOKENS, low=0)
    common_fields = {name: fields.get(name) for name in _COPIED_FIELDS}
    common_fields["max_tokens"] = _DEFAULT_MAX_TOKENS if limit is None else max(limit, 1)
    prompts = [""] if fields.get("prompt") in (None, "") else parse_inputs(fields["prompt"], "prompt")
    texts = [item if isinstance(item, str) else " ".join(map(str, item)) for item in prompts]
    return [parse_chat({**common_fields, "messages": [{"role": "user", "content": text}]}) for text in texts]


def _build_whole(answers: list[tuple[DemoChatRequest, talk.DemoAnswer]], *, echo: bool) -> Json:
    choices = [
        _build_choice(index, _find_echo(chat_request, echo=echo) + "".join(answer.pieces), answer.finish_reason)
        for index, (chat_request, answer) in enumerate(answers)
    ]
    return {**_build_head(), "choices": choices, "usage": _build_usage(answers)}


def _build_chunks(answers: list[tuple[DemoChatRequest, talk.DemoAnswer]], *, echo: bool) -> Iterator[bytes]:
    head, include_usage = _build_head(), answers[0][0].include_usage
    usage = {"usage": None} if include_usage else {}
    for index, (chat_request, answer) in enumerate(answers):
        for piece in (*filter(None, [_find_echo(chat_request, echo=echo)]), *answer.pieces):
            yield build_event({**head, "choices": [_build_choice(index, piece, None)], **usage})
        yield build_event({**head, "choices": [_build_choice(index, "", answer.finish_reason)], **usage})
    if include_usage:
        yield build_event({**head, "choices": [], "usage": _build_usage(answers)})
    yield b"data: [DONE]\n\n"


def _find_echo(chat_request: DemoChatRequest, *, echo: bool) -> str:
    return talk.find_text(chat_request.messages[0]) if echo else ""


def _build_head() -> Json:
    head = {"object": "text_completion", "created": int(time.time()), "model": CHAT_MODEL}
    return {"id": f"cmpl-{secrets.token_hex(12)}", **head, "system_fingerprint": "fp_demo"}


def _build_choice(index: int, text: str, finish_reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _build_usage(answers: list[tuple[DemoChatRequest, talk.DemoAnswer]]) -> Json:
    """Return the token counts. Each prompt counts once, however many answers it gets."""
    prompts = {id(chat_request): talk.count_prompt_tokens(chat_request) for chat_request, _ in answers}
    prompt, completion = sum(prompts.values()), sum(answer.tokens for _, answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
