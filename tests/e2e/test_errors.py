"""Errors as the OpenAI SDK raises them: one test for each class. Which error is when: ``tests/server``."""

from typing import Any

import anthropic
import pytest
from google.genai import errors as google_errors
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    RateLimitError,
)

from tests.support.gateway import RunningGateway, channels
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClaude, MakeClient, MakeGoogle
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PNG = b"\x89PNG\r\n\x1a\n"


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": "m", "messages": ASK, **more})


@pytest.mark.parametrize("key", ["sk-no-account-has-this-key-0000", "x" * 5000])
async def test_a_wrong_key_raises_authentication_error_with_the_request_id(
    standing_with: StartGateway, sdk: MakeClient, key: str
) -> None:
    gateway = await standing_with({})
    with pytest.raises(AuthenticationError) as caught:
        await sdk(gateway, api_key=key).models.list()
    error = caught.value
    assert (error.status_code, error.code, error.type, error.param) == (401, "invalid_api_key", "new_api_error", None)
    assert error.request_id is not None
    assert isinstance(error.body, dict)
    assert error.body["message"].endswith(f"(request id: {error.request_id})")
    assert key not in error.message


async def test_a_providers_400_raises_bad_request_with_its_message(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    theirs = {
        "message": "too long, see https://provider.example/docs and sk-abcdefghijklmnopqrst",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    async with ScriptedUpstream([answer({"error": theirs}, 400, x_request_id="theirs", set_cookie="a=b")]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(BadRequestError) as caught:
            await chat(sdk(gateway))
        error = caught.value
        assert (error.type, error.param, error.code) == (theirs["type"], "messages", "context_length_exceeded")
        assert "too long" in error.message
        assert "provider.example" not in error.message
        assert "abcdefghij" not in error.message
        assert error.request_id is not None
        assert error.request_id.startswith("req_")
        assert "set-cookie" not in error.response.headers


@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_that_rejects_the_key_raises_internal_server_error(
    standing_with: StartGateway, sdk: MakeClient, stream: bool
) -> None:
    refusal = {"error": {"message": "Incorrect API key provided: provider-key", "type": "x", "code": "invalid_api_key"}}
    async with ScriptedUpstream([answer(refusal, 401)]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(InternalServerError) as caught:
            await chat(sdk(gateway), stream=stream)
        assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")
        assert "provider-key" not in str(caught.value.response.content)


async def _refused(gateway: RunningGateway, client: AsyncOpenAI, **more: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await chat(client, **more)
    return caught.value


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_the_sdk_does_not_retry_what_cannot_succeed(standing_with: StartGateway, sdk: MakeClient) -> None:
    refusal = {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "bad"}}
    async with ScriptedUpstream([answer(refusal, 400)]) as up:
        gateway = await standing_with(channels([up]))
        client = sdk(gateway, max_retries=2)
        assert isinstance(await _refused(gateway, client), BadRequestError)
        assert len(up.received) == 1
        error = await _refused(gateway, client, model="unknown")
        assert isinstance(error, NotFoundError)
        assert error.response.headers["x-should-retry"] == "false"
        error = await _refused(gateway, client, messages=[{"role": "nobody", "content": "x"}])
        assert isinstance(error, BadRequestError)
        assert (error.code, error.param) == ("invalid_request", "messages[0].role")
        assert len(up.received) == 1
        with pytest.raises(InternalServerError) as caught:
            await client.images.create_variation(image=PNG)
        assert (caught.value.status_code, caught.value.code) == (501, "api_not_implemented")
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
        await gateway.rows(3)


async def test_a_providers_rate_limit_raises_rate_limit_error_with_retry_after(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    limited = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    async with ScriptedUpstream([answer(limited, 429, retry_after="7", x_ratelimit_limit_requests="3")]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(RateLimitError) as caught:
            await chat(sdk(gateway))
        assert caught.value.response.headers["retry-after"] == "7"
        assert "x-ratelimit-limit-requests" not in caught.value.response.headers
        assert caught.value.code == "rate_limit_exceeded"


async def test_every_library_keeps_the_address_of_the_page_of_an_error(
    standing_with: StartGateway, sdk: MakeClient, claude: MakeClaude, google: MakeGoogle
) -> None:
    gateway = await standing_with({})
    page = f"{gateway.url}/help/reference/errors#model_not_found"
    with pytest.raises(NotFoundError) as openais:
        await chat(sdk(gateway), model="no-such-model")
    assert isinstance(openais.value.body, dict)
    assert (openais.value.code, openais.value.body["doc_url"]) == ("model_not_found", page)
    with pytest.raises(anthropic.NotFoundError) as anthropics:
        await claude(gateway).messages.create(model="no-such-model", max_tokens=5, messages=ASK)
    assert isinstance(anthropics.value.body, dict)
    assert anthropics.value.body["error"]["doc_url"] == page
    with pytest.raises(google_errors.ClientError) as googles:
        await google(gateway).aio.models.generate_content(model="no-such-model", contents="hi")
    details = googles.value.details["error"]["details"]
    assert details[-1]["@type"] == "type.googleapis.com/google.rpc.Help"
    assert details[-1]["links"][0]["url"] == page
    for caught in (openais.value, anthropics.value):
        assert caught.response.headers["Link"] == f'<{page}>; rel="help"'
