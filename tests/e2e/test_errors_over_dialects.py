"""Errors of every API format as both SDKs raise them, whichever provider failed, for streams and whole answers."""

from collections.abc import Awaitable
from typing import Any

import anthropic
import openai
import pytest

from tests.support.anthropic_provider import AnthropicProvider
from tests.support.providers import KEY, Fails, Provider, Says
from tests.support.sdk_clients import MakeClaude, MakeClient, ProviderType
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "What is a gateway?"}]
ERRORS = [
    (400, "BadRequestError", "invalid_request_error"),
    (401, "InternalServerError", "api_error"),
    (404, "NotFoundError", "not_found_error"),
    (429, "RateLimitError", "rate_limit_error"),
    (500, "InternalServerError", "api_error"),
    (529, "InternalServerError", "api_error"),
]
"""A provider's status; the class both SDKs raise, and Anthropic's name of it. A 502 is its trouble, or ours with it."""


async def fail(call: Awaitable[Any], kind: type[Exception]) -> Any:
    """The exception of a call that has to raise ``kind``."""
    with pytest.raises(kind) as caught:
        await call
    return caught.value


def channels_of(up: Provider) -> dict[str, Any]:
    """A channel for every call: one that was refused is left alone for a while."""
    names = [f"m{at}" for at in range(4)]
    return {"channel": [up.channel(name, models=[name], model_map={name: up.model}) for name in names]}


async def call_each(gateway: Any, sdk: MakeClient, claude: MakeClaude, kind: str) -> tuple[list[Any], list[Any]]:
    """What the one SDK raises and what the other does, each for a whole answer and for a stream."""
    talk: Any = sdk(gateway).chat.completions
    messages: Any = claude(gateway).messages
    theirs, others = [], []
    for at, streamed in enumerate((False, True)):
        asked = {"messages": ASK, "stream": streamed, "max_tokens": 9}
        theirs.append(await fail(talk.create(**asked, model=f"m{at}"), getattr(openai, kind)))
        others.append(await fail(messages.create(**asked, model=f"m{at + 2}"), getattr(anthropic, kind)))
    return theirs, others


@pytest.mark.parametrize(("status", "kind", "name"), ERRORS)
async def test_a_status_is_the_sdks_own_exception(  # noqa: PLR0917 - fixtures are no arguments
    provider_type: ProviderType,
    status: int,
    kind: str,
    name: str,
    standing_with: StartGateway,
    sdk: MakeClient,
    claude: MakeClaude,
) -> None:
    ours = kind == "InternalServerError"
    answer = Fails(status, f"That will not do, {KEY}", headers={"retry-after": "7"} if status == 429 else {})
    async with provider_type(answer) as up:
        gateway = await standing_with(channels_of(up))
        theirs, others = await call_each(gateway, sdk, claude, kind)
        for error in (*theirs, *others):
            assert error.status_code == (502 if ours else status)
            assert KEY not in str(error.body)
            assert "That will not do" in error.message
            assert status != 429 or error.response.headers["retry-after"] == "7"
        assert not ours or {(error.code, error.type) for error in theirs} == {("upstream_error", "new_api_error")}
        assert {(error.body["type"], error.body["error"]["type"], error.type) for error in others} == {
            ("error", name, name)
        }
        rows = await gateway.rows(4)
        assert {(row.status, row.cost_nanos) for row in rows} == {(error.status_code, 0)}
        named = [*(error.request_id for error in theirs), *(error.body["request_id"] for error in others)]
        assert {row.id for row in rows} == set(named)
        for name_of, error in zip(named, (*theirs, *others), strict=True):
            assert f"(request id: {name_of})" in error.message


async def test_anthropics_sdk_finds_the_requests_id(standing_with: StartGateway, claude: MakeClaude) -> None:
    async with AnthropicProvider(Says("Hi"), Fails(500, "It broke")) as up:
        gateway = await standing_with({"channel": [up.channel()]})
        asked: Any = {"model": "m", "messages": ASK, "max_tokens": 9}
        message = await claude(gateway).messages.create(**asked)
        error = await fail(claude(gateway).messages.create(**asked), anthropic.InternalServerError)
        assert {row.id for row in await gateway.rows(2)} == {message._request_id, error.request_id}


async def test_an_error_as_the_first_event_of_a_stream_is_no_stream(
    provider_type: ProviderType, standing_with: StartGateway, sdk: MakeClient, claude: MakeClaude
) -> None:
    async with provider_type(Fails(529, "Overloaded", late=True)) as up:
        gateway = await standing_with(channels_of(up))
        theirs, others = await call_each(gateway, sdk, claude, "InternalServerError")
        for error in (*theirs, *others):
            assert error.status_code == 502
            assert "Overloaded" in error.message
        await gateway.rows(4)
