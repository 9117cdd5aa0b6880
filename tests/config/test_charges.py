"""What the built-in prices charge for the usage that vendors report, in nano-USD."""

from typing import Any

import pytest

from gateway.config.loader import read_shipped
from gateway.domain.price import cost_nanos
from gateway.domain.usage import Usage, attach_tier, parse_usage
from gateway.formats.anthropic import response as anthropic
from gateway.formats.gemini.usage_metadata import parse_usage_metadata
from gateway.formats.openai.images import parse_images_usage
from gateway.formats.openai.realtime import parse_realtime_usage


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
EDITED = {
    "input_tokens": 343,
    "input_tokens_details": {"text_tokens": 20, "image_tokens": 323},
    "output_tokens": 1056,
}
SPOKEN = chat(17, 592, completion_tokens_details={"audio_tokens": 482, "text_tokens": 110})
SEARCHED = {"input_tokens": 0, "output_tokens": 0, "server_tool_use": {"web_search_requests": 2}}
SESSION = {
    "input_tokens": 100,
    "output_tokens": 50,
    "input_token_details": {"audio_tokens": 80, "text_tokens": 20, "cached_tokens": 0},
    "output_token_details": {"audio_tokens": 40, "text_tokens": 10},
}


@pytest.mark.parametrize(
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
    ],
)
def test_a_charge_is_what_the_vendor_publishes(model: str, provider: str, usage: Usage, nanos: int) -> None:
    price = read_shipped().find(model, provider)
    assert price is not None
    assert cost_nanos(price, usage) == nanos
