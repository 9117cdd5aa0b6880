"""A key with a spending limit and a model without a price, at every endpoint: no provider is called."""

from typing import Any

import aiohttp
import pytest

from tests.support.gateway import KEY, channel
from tests.support.scripted_upstream import ScriptedUpstream
from tests.support.started_gateways import StartGateway

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/moderations": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["a"]},
    "/v1/images/generations": {"prompt": "a cat"},
    "/v1/audio/speech": {"input": "hi", "voice": "alloy"},
    "/v1/videos": {"prompt": "a cat"},
}
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "/v1/images/edits": ("image", {"prompt": "a cat"}),
    "/v1/audio/transcriptions": ("file", {}),
    "/v1/audio/translations": ("file", {}),
}
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
WAV = b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\0\0\0\0"


@pytest.mark.parametrize("model", ["mystery", "openai/mystery-20260101", "alias"])
async def test_no_endpoint_calls_a_provider_for_a_model_without_a_price(
    standing_with: StartGateway, model: str
) -> None:
    async with ScriptedUpstream([]) as up:
        names = {"models": [model], "model_map": {"alias": "theirs"}}
        channels = [channel(up.base_url, slug, provider=slug, **names) for slug in ("custom", "openai", "anthropic")]
        key = {"name": "test", "account": "acme", "secret": KEY, "quota_usd": 5, "quota_period": "lifetime"}
        gateway = await standing_with({"channel": channels, "key": [key]})
        codes = {}
        for path, fields in BODIES.items():
            async with gateway.client.post(gateway.url + path, json={"model": model, **fields}) as response:
                codes[path] = (response.status, "model_not_priced" in await response.text())
        for path, (name, more) in FORMS.items():
            form = aiohttp.FormData({"model": model, **more})
            form.add_field(name, PNG if name == "image" else WAV, filename="a.png" if name == "image" else "a.wav")
            async with gateway.client.post(gateway.url + path, data=form) as response:
                codes[path] = (response.status, "model_not_priced" in await response.text())
        assert codes == dict.fromkeys((*BODIES, *FORMS), (403, True))
        assert not up.received
        await gateway.rows(len(codes))
