"""Every operation of the public API is called, and answers what the document says; what is refused is refused so."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson
import pytest

from gateway.server.context import SERVICES
from tests.support.gateway import KEY
from tests.support.image_providers import draw
from tests.support.openai_audio import make_wav
from tests.support.openapi_calls import Call, Caller, Memory, exceed, spoil
from tests.support.openapi_provider import MODEL, Everything
from tests.support.started_gateways import StartGateway
from tests.support.video_scene import await_job

HELLO = [{"role": "user", "content": "hi"}]
IMAGE, SOUND = draw(), make_wav(0.2)
FILM = {"model": "film", "prompt": "waves", "seconds": "4", "size": "1280x720"}
CHAT = {"model": MODEL, "messages": HELLO, "temperature": 0.5, "stop": ["x"], "n": 1, "user": None}
SAY = {"model": "claude", "max_tokens": 9, "messages": HELLO}
GENERATE: dict[str, Any] = {
    "contents": [{"parts": [{"text": "hi"}]}],
    "system_instruction": {"parts": [{"text": "be kind"}]},
}
GOOGLES = {"model": MODEL}
EMBED = {"content": {"parts": [{"text": "hi"}]}}
VIDEO = {"id": "$video"}
LINE = {"method": "POST", "url": "/v1/chat/completions", "body": CHAT}
LINES = b"\n".join(orjson.dumps({**LINE, "custom_id": str(number)}) for number in range(2_000))
BATCH = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"a": "b"}}
MESSAGES = [{"custom_id": str(number), "params": SAY} for number in range(2_000)]
UPLOAD = {"filename": "x.jsonl", "purpose": "batch", "bytes": 2, "mime_type": "application/jsonl"}


def keep_link(answer: Any, memory: Memory) -> None:
    link = urlsplit(answer["data"][0]["url"])
    memory["media"] = link.path.rpartition("/")[2]
    memory |= dict(parse_qsl(link.query))


def keep_response(answer: Any, memory: Memory) -> None:
    memory["response"] = answer["id"]


def keep_video(answer: Any, memory: Memory) -> None:
    memory["video"] = answer["id"]


def keep_as(name: str) -> Callable[[Any, Memory], None]:
    def keep(answer: Any, memory: Memory) -> None:
        memory[name] = answer["id"]

    return keep


LINK = {"expires": "$expires", "signature": "$signature"}
STREAM_OPERATIONS = {"get_stream", "delete_stream", "create_stream_token"}
CALLS = (
    Call("create_chat_completion", CHAT, headers={"Idempotency-Key": "once"}),
    Call("create_chat_completion", CHAT, headers={"Idempotency-Key": "once"}),
    Call("create_chat_completion", {**CHAT, "n": 2}, headers={"Idempotency-Key": "once"}, status=409),
    Call("create_chat_completion", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    Call("create_chat_completion", {**CHAT, "model": "nobody's"}, status=404),
    Call("create_chat_completion", {**CHAT, "temperature": 101}, status=400),
    Call("create_chat_completion", CHAT, headers={"Authorization": "Bearer sk-of-nobody-at-all"}, status=401),
    Call("create_chat_completion", form={"model": MODEL}, status=415),
    Call("create_response", {"model": MODEL, "input": "hi"}),
    Call("open_realtime_session", query={"model": MODEL}, status=400),
    Call("create_realtime_client_secret", {"session": {"type": "realtime", "instructions": "Be brief."}}),
    Call("create_realtime_client_secret", {"expires_after": {"anchor": "created_at", "seconds": 5}}, status=400),
    Call("create_realtime_session", {"instructions": "Be brief."}),
    Call("create_response", {"model": MODEL, "input": HELLO, "stream": True}),
    Call("create_response", {"model": "claude", "input": "hi"}, keep=keep_response),
    Call("compact_response", {"model": "claude", "input": "hi"}),
    Call("create_response", {"model": "claude", "input": "hi", "previous_response_id": "$response"}),
    Call("create_response", {"model": "claude", "input": "hi", "previous_response_id": "resp_none"}, status=404),
    Call("get_response", path={"id": "$response"}),
    Call("get_response", path={"id": "$response"}, query={"stream": "true"}),
    Call("get_response", path={"id": "resp_none"}, status=404),
    Call("list_response_input_items", path={"id": "$response"}, query={"limit": "1", "order": "asc"}),
    Call("list_response_input_items", path={"id": "$response"}, query={"limit": "0"}, status=400),
    Call("cancel_response", path={"id": "$response"}, status=400),
    Call("delete_response", path={"id": "$response"}),
    Call("delete_response", path={"id": "$response"}, status=404),
    Call("create_completion", {"model": MODEL, "prompt": "hi"}),
    Call("create_completion", {"model": MODEL, "prompt": ["hi"], "stream": True}),
    Call("create_message", SAY, headers={"anthropic-version": "2023-06-01"}),
    Call("create_message", {**SAY, "model": MODEL, "system": "be kind"}),
    Call("create_message", {**SAY, "stream": True}),
    Call("create_message", {**SAY, "max_tokens": -1}, status=400),
    Call("create_message", SAY, headers={"Authorization": ""}, status=401),
    Call("count_tokens", {"model": "claude", "messages": HELLO}),
    Call("generate_content", GENERATE, path=GOOGLES),
    Call("generate_content", GENERATE, path={"model": "claude"}, headers={"Authorization": "", "x-goog-api-key": KEY}),
    Call("generate_content", {**GENERATE, "generationConfig": {"topP": 2}}, path=GOOGLES, status=400),
    Call("generate_content", GENERATE, path=GOOGLES, headers={"Authorization": ""}, status=401),
    Call("stream_generate_content", GENERATE, path=GOOGLES),
    Call("stream_generate_content", GENERATE, path=GOOGLES, query={"alt": "sse"}),
    Call("generate_content_v1", GENERATE, path=GOOGLES),
    Call("stream_generate_content_v1", GENERATE, path=GOOGLES, query={"alt": "sse"}),
    Call("count_content_tokens", {"contents": GENERATE["contents"]}, path={"model": "claude"}),
    Call("count_content_tokens_v1", {"generateContentRequest": GENERATE}, path=GOOGLES),
    Call("embed_content", EMBED, path=GOOGLES),
    Call("embed_content_v1", {**EMBED, "output_dimensionality": 3}, path=GOOGLES),
    Call("batch_embed_contents", {"requests": [EMBED]}, path=GOOGLES),
    Call("batch_embed_contents_v1", {"requests": [EMBED]}, path=GOOGLES),
    Call("batch_embed_contents_v1", {"requests": []}, path=GOOGLES, status=400),
    Call("list_google_models", query={"pageSize": "1"}),
    Call("list_google_models", query={"pageSize": "few"}, status=400),
    Call("get_google_model", path=GOOGLES),
    Call("get_google_model", path={"model": "org/none"}, status=404),
    Call("create_embeddings", {"model": MODEL, "input": ["hi"]}),
    Call("create_embeddings", {"model": MODEL, "input": "hi", "encoding_format": "base64"}),
    Call("rerank", {"model": MODEL, "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
    Call("create_moderation", {"model": MODEL, "input": "hi"}),
    Call("list_models"),
    Call("list_models", headers={"anthropic-version": "2023-06-01"}),
    Call("list_models", headers={"If-None-Match": "*"}, status=304),
    Call("get_model", path={"model": MODEL}),
    Call("get_model", path={"model": MODEL}, headers={"anthropic-version": "2023-06-01"}),
    Call("get_model", path={"model": "org/none"}, status=404),
    Call("create_image", {"model": MODEL, "prompt": "a boat", "size": "auto"}, keep=keep_link),
    Call("create_image", {"model": MODEL, "prompt": "a boat", "response_format": "b64_json"}),
    Call("create_image", {"model": MODEL, "prompt": "a boat", "response_format": "b64_json", "stream": True}),
    Call("edit_image", form={"model": MODEL, "prompt": "a boat", "image": IMAGE, "response_format": "b64_json"}),
    Call("edit_image", form={"model": MODEL, "prompt": "a boat"}, status=400),
    Call("create_image_variation", {}, status=501),
    Call("get_media", path={"id": "$media"}, query=LINK),
    Call("get_media", path={"id": "$media"}, query=LINK, headers={"Range": "bytes=0-9"}, status=206),
    Call("get_media", path={"id": "$media"}, query=LINK, headers={"Range": "bytes=99999-"}, status=416),
    Call("get_media", path={"id": "$media"}, query={**LINK, "signature": "none"}, status=404),
    Call("create_speech", {"model": MODEL, "input": "hi", "voice": "alloy"}),
    Call("create_transcription", form={"model": MODEL, "file": SOUND}),
    Call("create_transcription", form={"model": MODEL, "file": SOUND, "response_format": "text"}),
    Call("create_translation", form={"model": MODEL, "file": SOUND}),
    Call("create_video", FILM, keep=keep_video),
    Call("create_video", {**FILM, "duration": 9}, status=400),
    Call("create_video_generation", form={**FILM, "prompt": "by form", "input_reference": IMAGE}),
    Call("get_video", path={"id": "nobody's"}, status=404),
    Call("create_file", form={"purpose": "batch", "file": b"{}"}, keep=keep_as("file")),
    Call("create_file", form={"purpose": "none", "file": b"{}"}, status=400),
    Call("create_file", {}, status=415),
    Call("list_files", query={"limit": "1", "purpose": "batch", "order": "asc"}),
    Call("list_files", query={"limit": "0"}, status=400),
    Call("get_file", path={"id": "$file"}),
    Call("get_file_content", path={"id": "$file"}),
    Call("get_file_content", path={"id": "$file"}, headers={"Range": "bytes=0-0"}, status=206),
    Call("create_file", form={"purpose": "batch", "file": LINES}, keep=keep_as("file")),
    Call("create_batch", {**BATCH, "input_file_id": "$file"}, keep=keep_as("batch")),
    Call("cancel_batch", path={"id": "$batch"}),
    Call("create_batch", {**BATCH, "endpoint": "/v1/videos", "input_file_id": "$file"}, status=400),
    Call("list_batches", query={"limit": "1"}),
    Call("list_batches", query={"limit": "0"}, status=400),
    Call("get_batch", path={"id": "$batch"}),
    Call("get_batch", path={"id": "nobody's"}, status=404),
    Call("cancel_batch", path={"id": "batch_" + "0" * 32}, status=404),
    Call("create_message_batch", {"requests": MESSAGES}, keep=keep_as("messages")),
    Call("create_message_batch", {"requests": []}, status=400),
    Call("list_message_batches", query={"limit": "1"}),
    Call("list_message_batches", query={"limit": "0"}, status=400),
    Call("get_message_batch", path={"id": "$messages"}),
    Call("get_message_batch_results", path={"id": "$messages"}, status=404),
    Call("delete_message_batch", path={"id": "$messages"}, status=409),
    Call("cancel_message_batch", path={"id": "$messages"}),
    Call("delete_message_batch", path={"id": "msgbatch_" + "0" * 32}, status=404),
    Call("delete_file", path={"id": "$file"}),
    Call("get_file", path={"id": "$file"}, status=404),
    Call("create_upload", {**UPLOAD, "bytes": 10**12}, status=413),
    Call("create_upload", UPLOAD, keep=keep_as("upload")),
    Call("add_upload_part", path={"id": "$upload"}, form={"data": b"{}"}, keep=keep_as("part")),
    Call("add_upload_part", path={"id": "$upload"}, form={"data": b"{}"}, status=413),
    Call("complete_upload", {"part_ids": ["$part"]}, path={"id": "$upload"}),
    Call("cancel_upload", path={"id": "$upload"}, status=409),
    Call("create_upload", UPLOAD, keep=keep_as("upload")),
    Call("cancel_upload", path={"id": "$upload"}),
)
FINISHED = (
    Call("get_message_batch_results", path={"id": "$messages"}),
    Call("delete_message_batch", path={"id": "$messages"}),
    Call("get_video", path=VIDEO),
    Call("get_video_generation", path=VIDEO, headers={"X-Stainless-Lang": "python"}),
    Call("list_videos", query={"limit": "1", "order": "asc"}),
    Call("list_videos", query={"limit": "0"}),
    Call("list_videos", query={"limit": "-1"}, status=400),
    Call("follow_video", path=VIDEO),
    Call("get_video_content", path=VIDEO),
    Call("get_video_content", path=VIDEO, headers={"Range": "bytes=0-9"}, status=206),
    Call("get_video_content", path=VIDEO, query={"variant": "none"}, status=400),
    Call("remix_video", {"prompt": "again"}, path=VIDEO),
    Call("remix_video", {"prompt": "again", "size": "1x1"}, path=VIDEO, status=400),
    Call("delete_video", path=VIDEO),
    Call("delete_video", path=VIDEO, status=404),
    Call("get_own_key"),
    Call("get_own_usage", query={"by": "model", "from": "2026-01-01", "to": "2026-01-03"}),
    Call("get_own_usage", query={"by": "account"}, status=400),
    *(Call(name, path={"id": "st_none"}, status=404) for name in sorted(STREAM_OPERATIONS)),
    Call("create_quote", CHAT),
    Call("create_quote", CHAT, query={"hold_s": "61"}, status=400),
    Call("get_billing_subscription"),
    Call("get_billing_usage", query={"start_date": "2026-01-01", "end_date": "2026-01-03"}),
    Call("get_billing_usage", query={"start_date": "soon"}, status=400),
    Call("get_root"),
    Call("get_root", headers={"Accept": "text/html"}, status=303),
    Call("get_liveness"),
    Call("get_readiness"),
    Call("get_metrics"),
    Call("get_openapi"),
    Call("get_docs"),
)
NEVER_WELL = {"create_image_variation", "cancel_response", "open_realtime_session"} | STREAM_OPERATIONS


@pytest.fixture
async def caller(gateway_with: StartGateway) -> AsyncIterator[Caller]:
    async with Everything() as up:
        yield Caller(await gateway_with({"channel": up.list_channels(), "egress": {"allow": ["127.0.0.1"]}}))


@pytest.mark.slow
async def test_every_operation_answers_what_the_document_says(caller: Caller) -> None:
    for call in CALLS:
        await caller.make(call)
    for prompt in ("waves", "by form"):
        await await_job(caller.gateway, prompt, "completed")
    await caller.gateway.app[SERVICES].batches._tasks.wait()
    for call in FINISHED:
        await caller.make(call)
    await await_job(caller.gateway, "again")
    assert not caller.problems, "\n".join(caller.problems)
    assert caller.reader.names(admin=False) - caller.called == NEVER_WELL


async def test_what_is_missing_or_of_the_wrong_kind_is_named(caller: Caller) -> None:
    """Of every body of JSON: each field that must be there, left out and spoiled; each limit that is told, passed."""
    asked = 0
    for name in sorted(caller.reader.names(admin=False)):
        schema = caller.reader.find_body(name)
        if schema is None or name == "remix_video":  # a remix is looked for before it is read
            continue
        example = caller.reader.find_example(name)
        for field, reported in schema["properties"].items():
            for value in exceed(reported):
                asked += 1
                await check_named(caller, Call(name, {**example, field: value}), field)
        for field in schema.get("required", ()):
            rest = {key: value for key, value in example.items() if key != field}
            for body in (rest, {**rest, field: spoil(schema["properties"][field])}):
                asked += 1
                await check_named(caller, Call(name, body), field)
    assert asked > 90
    assert not caller.problems, "\n".join(caller.problems)


async def check_named(caller: Caller, call: Call, field: str) -> None:
    """A 400 whose ``param`` is the field or a part of it."""
    async with asyncio.timeout(10):
        status, media_type, raw = await caller.ask(call)
    caller.problems += [
        f"{call.operation}: {message}" for message in caller.reader.judge(call.operation, status, media_type, raw)
    ]
    named = (f'"param":"{field}', f'"fieldViolations":[{{"field":"{field}')  # the latter in Google's format
    if status != 400 or not any(place.encode() in raw for place in named):
        caller.problems.append(
            f"{call.operation} with {field} of {call.body.get(field, 'nothing')}: {status} {raw[:200]!r}"
        )
