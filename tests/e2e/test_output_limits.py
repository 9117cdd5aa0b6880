"""A coding agent's limit of output tokens is lowered to what the model gives, as its provider says."""

from typing import Any

import pytest

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.gateway import RunningGateway
from tests.support.gemini_provider import GeminiProvider
from tests.support.openai_provider import OpenAIProvider
from tests.support.providers import Fails, Provider, Says
from tests.support.sdk_clients import ProviderType
from tests.support.started_gateways import StartGateway
from tests.support.strict_providers.chat_vendors import DashScope

ASKED = 32_000
OPENAI = "max_tokens is too large: 32000. This model supports at most {} completion tokens, whereas you provided 32000."
ANTHROPIC = "max_tokens: 32000 > {}, which is the maximum allowed number of output tokens for claude-haiku-4-5"
VERTEX = "it has a maxOutputTokens value of 32000 but the supported range is from 1 (inclusive) to {} (exclusive)."


async def ask(gateway: RunningGateway, *, stream: bool, limit: int = ASKED) -> tuple[int, str, str]:
    """Return the status, what was adapted, and the text of the answer."""
    body: dict[str, Any] = {
        "model": "m",
        "max_tokens": limit,
        "messages": [{"role": "user", "content": "hi"}],
        "stream": stream,
    }
    body["thinking"] = {"type": "disabled"}  # DashScope's model thinks only in streams
    async with gateway.post(body, "/v1/messages") as response:
        return response.status, response.headers.get("x-gateway-adapted", ""), await response.text()


def list_limits(provider: Provider) -> list[Any]:
    """Return the limits of the requests that arrived."""
    bodies = [one.json for one in provider.received]
    settings = [body | body.get("generationConfig", {}) for body in bodies]
    names = ("max_tokens", "max_completion_tokens", "maxOutputTokens")
    return [next(one[name] for name in names if name in one) for one in settings]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "script", "limit"),
    [
        (OpenAIProvider, (Fails(400, OPENAI.format(16_384)), Says("Hello")), 16_384),
        (AnthropicProvider, (Fails(400, ANTHROPIC.format(8_192)), Says("Hello")), 8_192),
        (GeminiProvider, (Fails(400, VERTEX.format(8_193)), Says("Hello")), 8_192),
        (DashScope, (), 16_384),
    ],
)
async def test_a_limit_is_learned_from_one_refusal(
    kind: ProviderType, script: tuple[Says | Fails, ...], limit: int, stream: bool, standing_with: StartGateway
) -> None:
    async with kind(*script) as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        for _ in range(2):
            status, adapted, text = await ask(gateway, stream=stream)
            assert status == 200, text
            assert "max_tokens" in adapted.split(", ")
        status, adapted, _text = await ask(gateway, stream=stream, limit=limit)
        assert (status, "max_tokens" in adapted) == (200, False)
        assert list_limits(provider) == [ASKED, limit, limit, limit]
        rows = await gateway.rows(3)
        assert sorted(row.attempts for row in rows) == [1, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("named", [0, 1, ASKED, 64_000])
async def test_an_absurd_limit_is_not_followed(named: int, stream: bool, standing_with: StartGateway) -> None:
    async with OpenAIProvider(Fails(400, OPENAI.format(named))) as provider:
        gateway = await standing_with({"channel": [provider.channel()]})
        status, _adapted, text = await ask(gateway, stream=stream)
        assert status == 400
        assert f"supports at most {named} " in text
        assert list_limits(provider) == [ASKED]


@pytest.mark.parametrize(("then", "status"), [(Fails(400, OPENAI.format(4_096)), 400), (Fails(503, "Busy"), 502)])
async def test_a_limit_is_lowered_once_and_remembered_only_if_it_helps(
    then: Fails, status: int, standing_with: StartGateway
) -> None:
    async with OpenAIProvider(Fails(400, OPENAI.format(16_384)), then, Says("Hello")) as provider:
        gateway = await standing_with({"channel": [provider.channel()], "routing": {"max_attempts": 1}})
        failed = await ask(gateway, stream=False)
        assert failed[0] == status
        assert then.message.partition(".")[0] in failed[2]
        assert (await ask(gateway, stream=False))[0] == 200
        assert list_limits(provider) == [ASKED, 16_384, ASKED]
