"""What the built-in prices charge for the usage that vendors report, in nano-USD."""

from collections.abc import Callable
from typing import Any

import orjson

from gateway.config.loader import read_shipped_prices
from gateway.domain.api_format import Wire
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS, Operation
from gateway.domain.price import compute_cost_nanos
from gateway.domain.usage import Usage, attach_tier, parse_usage
from gateway.formats.chat.anthropic import response as anthropic
from gateway.formats.chat.gemini.usage_metadata import parse_usage_metadata
from gateway.formats.images.openai import parse_images_usage
from gateway.formats.realtime.events import parse_realtime_usage
from gateway.formats.registry import make_translator
from gateway.formats.stream import StreamTransform
from gateway.formats.translator import ResponseIdentity
from gateway.formats.usage.detail_bounds import fill_details
from tests.support import converse_cassettes as converse_stream
from tests.support.table_rows import table_rows


def gemini(raw: dict[str, Any]) -> Usage | None:
    report = parse_usage_metadata(raw)
    return None if report is None else report.usage


def part(modality: str, count: int) -> dict[str, Any]:
    return {"modality": modality, "tokenCount": count}


def chat(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}


HEARD = {
    "promptTokenCount": 1928,
    "candidatesTokenCount": 10,
    "promptTokensDetails": [part("AUDIO", 1920), part("TEXT", 8)],
}
DRAWN = {
    "promptTokenCount": 10,
    "candidatesTokenCount": 1920,
    "candidatesTokensDetails": [part("IMAGE", 1120), part("TEXT", 800)],
}
EDITED = {"input_tokens": 343, "input_tokens_details": {"text_tokens": 20, "image_tokens": 323}, "output_tokens": 1056}
SPOKEN = chat(17, 592, completion_tokens_details={"audio_tokens": 482, "text_tokens": 110})
SEARCHED = {"input_tokens": 0, "output_tokens": 0, "server_tool_use": {"web_search_requests": 2}}
KEPT = {
    "input_tokens": 1_000,
    "output_tokens": 50,
    "input_token_details": {
        "audio_tokens": 800,
        "text_tokens": 200,
        "cached_tokens": 600,
        "cached_tokens_details": {"audio_tokens": 500, "text_tokens": 100},
    },
    "output_token_details": {"audio_tokens": 40, "text_tokens": 10},
}
REDRAWN = {
    "input_tokens": 343,
    "input_tokens_details": {
        "text_tokens": 20,
        "image_tokens": 323,
        "cached_tokens": 300,
        "cached_tokens_details": {"image_tokens": 300},
    },
    "output_tokens": 1056,
}
SESSION = {
    "input_tokens": 100,
    "output_tokens": 50,
    "input_token_details": {"audio_tokens": 80, "text_tokens": 20, "cached_tokens": 0},
    "output_token_details": {"audio_tokens": 40, "text_tokens": 10},
}


@table_rows(
    ("model", "provider", "usage", "nanos"),
    [
        ("gpt-4o-audio-preview", "openai", parse_usage(SPOKEN), 39_702_500),
        ("gpt-audio", "openai", parse_usage(SPOKEN), 17 * 2_500 + 110 * 10_000 + 482 * 64_000),
        ("gemini-3-flash-preview", "gemini", gemini(HEARD), 1_954_000),
        ("gemini-2.5-flash", "gemini", gemini(HEARD), 1_947_400),
        ("gemini-3.1-flash-image", "gemini", gemini(DRAWN), 69_605_000),
        ("gpt-image-1", "openai", parse_images_usage(EDITED), 45_570_000),
        ("claude-opus-4-6", "anthropic", anthropic.parse_usage(SEARCHED), 20_000_000),
        ("gpt-realtime", "openai", parse_realtime_usage(SESSION), 20 * 4_000 + 80 * 32_000 + 10 * 16_000 + 40 * 64_000),
        ("gpt-5-mini", "openai", attach_tier(Usage(1_000, 100), "flex"), 225_000),
        ("gpt-4.1", "openai", attach_tier(Usage(160, 30), "priority"), 980_000),
        ("gpt-4.1", "openai", attach_tier(Usage(160, 30), "default"), 560_000),
        ("omni-moderation-latest", "openai", Usage(500), 0),
        ("whisper-1", "openai", Usage(duration_ms=61_000), 6_100_000),
        ("tts-1", "openai", Usage(characters=1_001), 15_015_000),
        ("tts-1-hd", "openai", Usage(characters=1_001), 30_030_000),
        ("gpt-4o-mini-tts", "openai", Usage(100, 1_000), 12_060_000),
        ("gpt-realtime", "openai", parse_realtime_usage(KEPT), 400_000 + 9_600_000 + 240_000 + 160_000 + 2_560_000),
        ("gpt-image-1", "openai", parse_images_usage(REDRAWN), 100_000 + 230_000 + 750_000 + 42_240_000),
        ("veo-3.1-generate-001", "vertex", Usage(duration_ms=8_000, size="3840x2160"), 4_800_000_000),
        ("veo-3.1-generate-001", "vertex", Usage(duration_ms=8_000, size="1920x1080"), 3_200_000_000),
        ("sora-2-pro", "openai", Usage(duration_ms=4_000, size="1792x1024"), 2_000_000_000),
    ],
)
def test_a_charge_is_what_the_vendor_publishes(model: str, provider: str, usage: Usage, nanos: int) -> None:
    price = read_shipped_prices().find(model, provider)
    assert price is not None
    assert compute_cost_nanos(price, usage) == nanos


def text(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """A chat answer."""
    extra = {name: more.pop(name) for name in ("service_tier",) if name in more}
    choice = {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return {
        "id": "c",
        "object": "chat.completion",
        "choices": [choice],
        "usage": chat(prompt, completion, **more),
    } | extra


def response(prompt: int, completion: int, *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    body = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}
    usage = {"input_tokens": prompt, "output_tokens": completion, **more.pop("usage", {})}
    return {"id": "r", "object": "response", "status": "completed", "output": [*items, body], "usage": usage} | more


def message(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": prompt, "output_tokens": completion, **more}
    answers = [{"type": "text", "text": "ok"}]
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": answers,
        "stop_reason": "end_turn",
        "usage": usage,
    }


def generated(prompt: int, completion: int, *, queries: int = 0, version: str = "", **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}
    if queries:
        candidate["groundingMetadata"] = {"webSearchQueries": ["q"] * queries}
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": completion, **more}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": version}


def converse(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    usage = {"inputTokens": prompt, "outputTokens": completion, "totalTokens": prompt + completion, **more}
    body = {"message": {"role": "assistant", "content": [{"text": "ok"}]}}
    return {"output": body, "stopReason": "end_turn", "usage": usage}


def ranked(**more: Any) -> dict[str, Any]:
    return {"results": [{"index": 0, "relevance_score": 0.5}]} | more


SEARCH: dict[str, Any] = {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "q"}}
OPENED: dict[str, Any] = {"type": "web_search_call", "id": "w", "action": {"type": "open_page", "url": "u"}}
FILES: dict[str, Any] = {"type": "file_search_call", "id": "f", "queries": ["q"]}
ANSWERS: list[tuple[str, str, Operation, Wire, dict[str, Any], int]] = [
    (
        "gpt-4o-audio-preview",
        "openai",
        "chat",
        "openai_chat",
        text(17, 592, completion_tokens_details={"audio_tokens": 482}),
        39_702_500,
    ),
    ("gpt-4o", "openai", "chat", "openai_chat", text(1_000, 100), 3_500_000),
    (
        "gpt-4o",
        "openai",
        "chat",
        "openai_chat",
        text(1_000, 100, prompt_tokens_details={"cached_tokens": 800}),
        200 * 2_500 + 800 * 1_250 + 100 * 10_000,
    ),
    ("gpt-4o", "openai", "chat", "openai_chat", text(1_000, 100, service_tier="priority"), 5_950_000),
    ("gpt-5-mini", "openai", "chat", "openai_chat", text(1_000, 100, service_tier="flex"), 225_000),
    ("gpt-5-mini", "openai", "chat", "openai_chat", text(1_000, 100, service_tier="default"), 450_000),
    ("gpt-4.1", "openai", "chat", "openai_chat", text(160, 30, service_tier="priority"), 980_000),
    (
        "gpt-5",
        "openai",
        "chat",
        "openai_chat",
        text(1_000, 500, completion_tokens_details={"reasoning_tokens": 400}),
        1_250_000 + 5_000_000,
    ),
    ("gpt-5.4", "openai", "chat", "openai_chat", text(272_000, 10), 272_000 * 2_500 + 150_000),
    ("gpt-5.4", "openai", "chat", "openai_chat", text(272_001, 10), 272_001 * 5_000 + 225_000),
    (
        "gpt-audio",
        "openai",
        "chat",
        "openai_chat",
        text(100, 50, prompt_tokens_details={"audio_tokens": 80}),
        20 * 2_500 + 80 * 32_000 + 50 * 10_000,
    ),
    (
        "deepseek-chat",
        "deepseek",
        "chat",
        "openai_chat",
        text(1_000, 100, prompt_cache_hit_tokens=600),
        400 * 270 + 600 * 70 + 100 * 1_100,
    ),
    (
        "grok-4",
        "xai",
        "chat",
        "openai_chat",
        {
            **text(100, 10),
            "usage": {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "total_tokens": 310,
                "completion_tokens_details": {"reasoning_tokens": 200},
            },
        },
        300_000 + 210 * 15_000,
    ),
    ("gpt-5", "openai", "responses", "openai_responses", response(1_000, 100), 2_250_000),
    (
        "gpt-5",
        "openai",
        "responses",
        "openai_responses",
        response(1_000, 100, usage={"input_tokens_details": {"cached_tokens": 400}}),
        600 * 1_250 + 400 * 125 + 1_000_000,
    ),
    ("gpt-5", "openai", "responses", "openai_responses", response(1_000, 100, SEARCH), 12_250_000),
    (
        "gpt-5",
        "openai",
        "responses",
        "openai_responses",
        response(1_000, 100, SEARCH, OPENED, SEARCH, FILES),
        2_250_000 + 22_500_000,
    ),
    (
        "gpt-5",
        "openai",
        "responses",
        "openai_responses",
        response(1_000, 100, SEARCH, service_tier="flex"),
        1_125_000 + 10_000_000,
    ),
    ("gpt-5.1-codex", "openai", "responses", "openai_responses", response(60_020, 9), 75_115_000),
    (
        "gpt-5.1-codex",
        "openai",
        "responses",
        "openai_responses",
        response(1_000, 100, service_tier="priority"),
        4_500_000,
    ),
    ("claude-sonnet-4-5", "anthropic", "messages", "anthropic_messages", message(1_000, 100), 4_500_000),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(10, 100, cache_read_input_tokens=2_000),
        30_000 + 600_000 + 1_500_000,
    ),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(10, 100, cache_creation_input_tokens=2_000),
        30_000 + 7_500_000 + 1_500_000,
    ),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(
            10,
            100,
            cache_creation_input_tokens=2_000,
            cache_creation={"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 1_500},
        ),
        30_000 + 500 * 3_750 + 1_500 * 6_000 + 1_500_000,
    ),
    ("claude-sonnet-4-5", "anthropic", "messages", "anthropic_messages", message(200_000, 100), 601_500_000),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(1, 100, cache_read_input_tokens=200_000),
        6_000 + 200_000 * 600 + 2_250_000,
    ),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(300, 40, server_tool_use={"web_search_requests": 2}),
        21_500_000,
    ),
    ("claude-fable-5-2", "anthropic", "messages", "anthropic_messages", message(1_000, 100), 12_000_000),
    ("claude-fable-5-2", "anthropic", "messages", "anthropic_messages", message(1_000, 100, speed="fast"), 24_000_000),
    (
        "claude-fable-5-2",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(1_000, 100, speed="standard", service_tier="standard"),
        12_000_000,
    ),
    (
        "anthropic.claude-sonnet-4-6",
        "bedrock_converse",
        "chat",
        "bedrock_converse",
        converse(1_000, 100),
        3_300_000 + 1_650_000,
    ),
    (
        "anthropic.claude-sonnet-4-6",
        "bedrock_converse",
        "chat",
        "bedrock_converse",
        converse(10, 100, cacheReadInputTokens=2_000),
        33_000 + 660_000 + 1_650_000,
    ),
    (
        "anthropic.claude-sonnet-4-6",
        "bedrock_converse",
        "chat",
        "bedrock_converse",
        converse(10, 100, cacheWriteInputTokens=2_000),
        33_000 + 8_250_000 + 1_650_000,
    ),
    ("gemini-2.5-flash", "gemini", "generate_content", "gemini_generate", generated(1_000, 100), 550_000),
    (
        "gemini-2.5-flash",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(1_000, 100, thoughtsTokenCount=50),
        300_000 + 375_000,
    ),
    (
        "gemini-2.5-flash",
        "gemini",
        "generate_content",
        "gemini_generate",
        {**generated(0, 0), "usageMetadata": HEARD},
        1_947_400,
    ),
    (
        "gemini-2.5-flash",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(
            1_000,
            100,
            cachedContentTokenCount=900,
            promptTokensDetails=[part("AUDIO", 600)],
            cacheTokensDetails=[part("AUDIO", 500), part("TEXT", 400)],
        ),
        400 * 30 + 500 * 100 + 100 * 1_000 + 100 * 2_500,
    ),
    ("gemini-2.5-pro", "gemini", "generate_content", "gemini_generate", generated(200_000, 100), 251_000_000),
    (
        "gemini-2.5-pro",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(200_001, 100),
        200_001 * 2_500 + 1_500_000,
    ),
    (
        "gemini-2.5-flash",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(1_000, 100, queries=3, version="gemini-2.5-flash"),
        35_550_000,
    ),
    (
        "gemini-3-flash-preview",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(1_000, 100, queries=3, version="gemini-3-flash-preview"),
        800_000 + 42_000_000,
    ),
    (
        "gemini-3-flash-preview",
        "gemini",
        "generate_content",
        "gemini_generate",
        {**generated(0, 0), "usageMetadata": HEARD},
        1_954_000,
    ),
    (
        "gemini-3.1-flash-image",
        "gemini",
        "generate_content",
        "gemini_generate",
        {**generated(0, 0), "usageMetadata": DRAWN},
        69_605_000,
    ),
    (
        "gpt-4o-transcribe",
        "openai",
        "transcriptions",
        "openai_transcriptions",
        {
            "text": "ok",
            "usage": {
                "type": "tokens",
                "input_tokens": 100,
                "output_tokens": 20,
                "total_tokens": 120,
                "input_token_details": {"audio_tokens": 90, "text_tokens": 10},
            },
        },
        25_000 + 90 * 6_000 + 200_000,
    ),
    (
        "gpt-4o-transcribe",
        "openai",
        "transcriptions",
        "openai_transcriptions",
        {"text": "ok", "usage": {"type": "tokens", "input_tokens": 100, "output_tokens": 20, "total_tokens": 120}},
        600_000 + 200_000,
    ),
    # Long context raises what is written for an hour, too: twice the input of that step.
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(
            1,
            100,
            cache_creation_input_tokens=200_000,
            cache_creation={"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200_000},
        ),
        6_000 + 200_000 * 12_000 + 2_250_000,
    ),
    # Inference in the United States: a tenth more on every token, on top of fast mode.
    *(
        ("claude-opus-4-8", "anthropic", "messages", "anthropic_messages", message(1_000, 100, **more), nanos)
        for more, nanos in (
            ({"inference_geo": "us"}, 8_250_000),
            ({"inference_geo": "us", "speed": "fast"}, 16_500_000),
            ({"inference_geo": "us", "server_tool_use": {"web_search_requests": 1}}, 18_250_000),
            ({"inference_geo": "global"}, 7_500_000),
            ({"inference_geo": "not_available"}, 7_500_000),
        )
    ),
    (
        "claude-sonnet-4-5",
        "anthropic",
        "messages",
        "anthropic_messages",
        message(1_000, 100, inference_geo="us"),
        4_500_000,
    ),
    # A served tier counts for cached tokens, too.
    (
        "gpt-5-mini",
        "openai",
        "chat",
        "openai_chat",
        text(1_000, 100, prompt_tokens_details={"cached_tokens": 800}, service_tier="flex"),
        (200 * 250 + 800 * 25 + 100 * 2_000) // 2,
    ),
    # Pages that a tool has read are input.
    (
        "gemini-2.5-flash",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(1_000, 100, toolUsePromptTokenCount=500, serviceTier="unspecified"),
        1_500 * 300 + 250_000,
    ),
    (
        "gemini-2.5-flash-preview-tts",
        "gemini",
        "generate_content",
        "gemini_generate",
        generated(10, 800, candidatesTokensDetails=[part("AUDIO", 800)]),
        5_000 + 800 * 10_000,
    ),
    # Mistral counts what is heard in seconds, beside the tokens.
    (
        "voxtral-small-2507",
        "mistral",
        "chat",
        "openai_chat",
        text(4, 100, prompt_audio_seconds=60),
        400 + 40_000 + 60 * 66_667,
    ),
    ("rerank-v3.5", "cohere", "rerank", "rerank", ranked(meta={"billed_units": {"search_units": 1}}), 2_000_000),
    ("rerank-v3.5", "cohere", "rerank", "rerank", ranked(meta={"billed_units": {"search_units": 3}}), 6_000_000),
    (
        "omni-moderation-latest",
        "openai",
        "moderations",
        "openai_moderations",
        {"id": "m", "model": "o", "results": [{"flagged": False}]},
        0,
    ),
    (
        "text-embedding-3-small",
        "openai",
        "embeddings",
        "openai_embeddings",
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
            "usage": {"prompt_tokens": 1_000, "total_tokens": 1_000},
        },
        20_000,
    ),
]


def find_charge(model: str, provider: str, usage: Usage, inference: InferenceRequest) -> int:
    price = read_shipped_prices().find(model, provider)
    assert price is not None
    return compute_cost_nanos(
        price, fill_details(usage, inference) if OPERATIONS[inference.operation].known_unit else usage
    )


@table_rows(("model", "provider", "operation", "wire", "answer", "nanos"), ANSWERS)
def test_an_answer_costs_what_the_vendor_publishes(
    model: str, provider: str, operation: Operation, *, wire: Wire, answer: dict[str, Any], nanos: int
) -> None:
    inference = InferenceRequest(operation, model, {"model": model, "messages": []})
    _, usage = make_translator(inference, wire, ResponseIdentity("i", model, 1)).parse_answer(orjson.dumps(answer), ())
    assert find_charge(model, provider, usage, inference) == nanos


def begun(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of an Anthropic message; its last counts are in ``message_delta``."""
    first = {**answer, "content": [], "stop_reason": None, "usage": {**answer["usage"], "output_tokens": 1}}
    return [
        {"type": "message_start", "message": first},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": answer["usage"]},
        {"type": "message_stop"},
    ]


def chunked(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a chat answer; the last has its usage."""
    shared = {name: value for name, value in answer.items() if name not in ("choices", "usage")}
    shared["object"] = "chat.completion.chunk"
    choice = {"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    return [shared | {"choices": [choice]}, shared | {"choices": [], "usage": answer["usage"]}]


def completed(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a response."""
    started = {"type": "response.created", "response": {**answer, "status": "in_progress", "output": [], "usage": None}}
    delta = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": "ok"}
    return [started, delta, {"type": "response.completed", "response": answer}]


STREAMS: dict[str, Callable[[dict[str, Any]], list[dict[str, Any]]]] = {
    "openai_chat": chunked,
    "openai_responses": completed,
    "anthropic_messages": begun,
    "gemini_generate": lambda answer: [answer],
}
STREAMED = [row for row in ANSWERS if row[3] in STREAMS]


def feed(transform: StreamTransform, wire: Wire, answer: dict[str, Any]) -> None:
    """Feed the events of an answer."""
    for event in STREAMS[wire](answer):
        named = f"event: {event['type']}\n" if "type" in event else ""
        transform.feed(f"{named}data: ".encode() + orjson.dumps(event) + b"\n\n")
    if wire == "openai_chat":
        transform.feed(b"data: [DONE]\n\n")


@table_rows(("model", "provider", "operation", "wire", "answer", "nanos"), STREAMED)
def test_a_stream_costs_the_same(
    model: str, provider: str, operation: Operation, *, wire: Wire, answer: dict[str, Any], nanos: int
) -> None:
    inference = InferenceRequest(operation, model, {"model": model, "messages": []}, stream=True)
    transform = make_translator(inference, wire, ResponseIdentity("i", model, 1)).open_transform(())
    feed(transform, wire, answer)
    transform.finish()
    assert find_charge(model, provider, transform.parse_usage(), inference) == nanos


@table_rows(
    ("model", "operation", "raw", "nanos"),
    [
        ("gpt-image-1", "images", {"input_tokens": 20, "output_tokens": 4_160}, 100_000 + 4_160 * 40_000),
        ("gpt-image-1", "image_edits", dict(**EDITED), 45_570_000),
        ("gpt-image-1.5", "images", {"input_tokens": 20, "output_tokens": 4_160}, 100_000 + 4_160 * 32_000),
        (
            "gpt-image-1.5",
            "images",
            {
                "input_tokens": 20,
                "output_tokens": 4_260,
                "output_tokens_details": {"image_tokens": 4_160, "text_tokens": 100},
            },
            100_000 + 4_160 * 32_000 + 100 * 10_000,
        ),
    ],
)
def test_images_cost_what_the_vendor_publishes(
    model: str, operation: Operation, raw: dict[str, Any], nanos: int
) -> None:
    inference = InferenceRequest(operation, model, {"model": model})
    usage = parse_images_usage(raw)
    assert usage is not None
    assert find_charge(model, "openai", usage, inference) == nanos


MAKERS: dict[Wire, Callable[[int, int], dict[str, Any]]] = {
    "openai_chat": text,
    "openai_responses": response,
    "anthropic_messages": message,
    "gemini_generate": generated,
    "bedrock_converse": converse,
}
PATHS: list[tuple[Operation, Wire]] = [
    ("chat", "openai_chat"),
    ("messages", "openai_chat"),
    ("responses", "openai_responses"),
    ("messages", "anthropic_messages"),
    ("chat", "anthropic_messages"),
    ("generate_content", "gemini_generate"),
    ("chat", "gemini_generate"),
    ("chat", "bedrock_converse"),
    ("messages", "bedrock_converse"),
]
PROMPTS: dict[str, Any] = {
    "responses": {"input": "hello there"},
    "generate_content": {"contents": [{"role": "user", "parts": [{"text": "hello there"}]}]},
}
ASKED = {"messages": [{"role": "user", "content": "hello there"}]}
HALVES = [(0, 0), (70, 0), (0, 70)]
"""Counts beside a text that cannot be true: some servers report 0 for what they do not count."""


def say(operation: Operation, *, stream: bool) -> InferenceRequest:
    body = {"model": "m", "max_tokens": 9, **PROMPTS.get(operation, ASKED)}
    return InferenceRequest(operation, "m", body, stream=stream, max_prompt_tokens=1_000)


def check_counts(usage: Usage, operation: Operation, wire: Wire, counts: tuple[int, int]) -> None:
    """A prompt of 3 tokens and a text of 1 are estimated; other counts are kept, except by the chat format's reader."""
    prompt, completion = counts
    if (operation, wire) == ("chat", "openai_chat") or (wire in {"openai_chat", "gemini_generate"} and not prompt):
        prompt = completion = 0  # of a report without a prompt nothing counts
    assert usage == Usage(prompt or 3, completion or 1, source="estimate")


@table_rows("counts", HALVES)
@table_rows(("operation", "wire"), PATHS)
def test_a_text_whose_counts_are_zero_is_estimated(operation: Operation, wire: Wire, counts: tuple[int, int]) -> None:
    inference, answer = say(operation, stream=False), MAKERS[wire](*counts)
    _, usage = make_translator(inference, wire, ResponseIdentity("i", "m", 1)).parse_answer(orjson.dumps(answer), ())
    check_counts(usage, operation, wire, counts)


@table_rows("counts", HALVES)
@table_rows(("operation", "wire"), PATHS)
def test_a_streamed_text_whose_counts_are_zero_is_estimated(
    operation: Operation, wire: Wire, counts: tuple[int, int]
) -> None:
    inference, answer = say(operation, stream=True), MAKERS[wire](*counts)
    transform = make_translator(inference, wire, ResponseIdentity("i", "m", 1)).open_transform(())
    if wire == "bedrock_converse":
        transform.feed(b"".join((converse_stream.BEGIN, converse_stream.words("ok"), converse_stream.stop())))
        transform.feed(
            converse_stream.finish() + converse_stream.event("metadata", {"usage": converse_stream.usage(*counts)})
        )
    else:
        feed(transform, wire, answer)
    transform.finish()
    check_counts(transform.parse_usage(), operation, wire, counts)


@table_rows(
    ("operation", "wire", "answer", "tier"),
    [
        ("messages", "anthropic_messages", message(9, 9, service_tier="priority"), "priority"),
        ("messages", "anthropic_messages", message(9, 9, service_tier="standard"), None),
        ("generate_content", "gemini_generate", generated(9, 9, serviceTier="priority"), "priority"),
        ("generate_content", "gemini_generate", generated(9, 9, serviceTier="SERVICE_TIER_FLEX"), "flex"),
        ("generate_content", "gemini_generate", generated(9, 9, serviceTier="standard"), None),
        ("generate_content", "gemini_generate", generated(9, 9, trafficType="ON_DEMAND_FLEX"), "flex"),
        ("generate_content", "gemini_generate", generated(9, 9, trafficType="ON_DEMAND"), None),
        ("chat", "bedrock_converse", converse(9, 9) | {"serviceTier": {"type": "flex"}}, "flex"),
        ("messages", "bedrock_converse", converse(9, 9) | {"serviceTier": {"type": "default"}}, None),
    ],
)
def test_the_tier_that_has_served_is_read(
    operation: Operation, wire: Wire, answer: dict[str, Any], tier: str | None
) -> None:
    inference = say(operation, stream=False)
    _, usage = make_translator(inference, wire, ResponseIdentity("i", "m", 1)).parse_answer(orjson.dumps(answer), ())
    assert (None if usage.details is None else usage.details.tier) == tier
