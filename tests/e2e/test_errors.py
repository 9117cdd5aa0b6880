"""Errors as the real SDK raises them."""

from typing import Any

import pytest
from openai import (
    APIStatusError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
)

from tests.support.gateway import KEY, RunningGateway, channel, channels
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

ASK: list[Any] = [{"role": "user", "content": "hi"}]
PNG = b"\x89PNG\r\n\x1a\n"


async def chat(client: AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": "m", "messages": ASK, **more})


def key_with(**more: Any) -> dict[str, Any]:
    return {"key": [{"name": "k", "account": "acme", "secret": KEY, **more}]}


@pytest.mark.parametrize("key", ["sk-nobody-has-this-key-0000", "not-a-key", "sk-short", "x" * 5000])
async def test_a_wrong_key_is_an_authentication_error_with_the_request_id(
    standing_with: StartGateway,
    sdk: MakeClient,
    key: str,
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


@pytest.mark.parametrize(
    ("restriction", "code"),
    [
        ({"status": "disabled"}, "key_disabled"),
        ({"expires_at": "2020-01-01"}, "key_expired"),
    ],
)
async def test_a_known_key_that_will_not_do_says_why(
    standing_with: StartGateway,
    sdk: MakeClient,
    restriction: dict[str, Any],
    code: str,
) -> None:
    gateway = await standing_with(key_with(**restriction))
    with pytest.raises(AuthenticationError) as caught:
        await chat(sdk(gateway), model="demo-chat")
    assert caught.value.code == code
    await gateway.rows(0)


async def test_the_key_of_a_disabled_account_is_disabled(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({"account": [{"name": "acme", "status": "disabled"}]})
    with pytest.raises(AuthenticationError) as caught:
        await sdk(gateway).models.list()
    assert caught.value.code == "key_disabled"


async def test_a_model_outside_the_keys_restriction_is_denied(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with(key_with(models=["demo-embedding"]))
    with pytest.raises(PermissionDeniedError) as caught:
        await chat(sdk(gateway), model="demo-chat")
    assert (caught.value.code, caught.value.param) == ("model_not_allowed", "model")
    (row,) = await gateway.rows(1)
    assert (row.ending, row.status, row.attempts) == ("refused", 403, 0)


async def test_a_providers_own_400_arrives_in_its_words(standing_with: StartGateway, sdk: MakeClient) -> None:
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


@pytest.mark.parametrize("status", [401, 402, 403])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_provider_that_refuses_our_credentials_is_a_502_of_ours(
    standing_with: StartGateway,
    sdk: MakeClient,
    status: int,
    stream: bool,
) -> None:
    refusal = {"error": {"message": "Incorrect API key provided: provider-key", "type": "x", "code": "invalid_api_key"}}
    async with ScriptedUpstream([answer(refusal, status)]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(InternalServerError) as caught:
            await chat(sdk(gateway), stream=stream)
        assert (caught.value.status_code, caught.value.code) == (502, "upstream_error")
        assert "provider-key" not in str(caught.value.response.content)


async def test_a_provider_that_is_down_leaves_the_call_to_the_next(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    async with ScriptedUpstream([answer(b"<html>", 503)]) as down, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await standing_with(channels([down, up]))
        completion = await chat(sdk(gateway))
        assert completion.choices[0].message.content == "hello"
        (row,) = await gateway.rows(1)
        assert (row.attempts, row.channel, row.ending) == (2, "up1", "completed")


async def _refused(gateway: RunningGateway, client: AsyncOpenAI, **more: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as caught:
        await chat(client, **more)
    return caught.value


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_the_sdk_does_not_ask_again_for_what_cannot_succeed(standing_with: StartGateway, sdk: MakeClient) -> None:
    refusal = {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "bad"}}
    async with ScriptedUpstream([answer(refusal, 400)]) as up:
        gateway = await standing_with(channels([up]))
        client = sdk(gateway, max_retries=2)
        assert isinstance(await _refused(gateway, client), BadRequestError)
        assert len(up.received) == 1
        error = await _refused(gateway, client, model="unknown")
        assert isinstance(error, NotFoundError)
        assert error.response.headers["x-should-retry"] == "false"
        assert len(up.received) == 1
        with pytest.raises(InternalServerError) as caught:
            await client.images.create_variation(image=PNG)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
        await gateway.rows(2)


async def test_a_providers_rate_limit_is_passed_on_with_its_retry_after(
    standing_with: StartGateway,
    sdk: MakeClient,
) -> None:
    limited = {"error": {"message": "slow down", "type": "requests", "param": None, "code": "rate_limit_exceeded"}}
    async with ScriptedUpstream([answer(limited, 429, retry_after="7", x_ratelimit_limit_requests="3")]) as up:
        gateway = await standing_with(channels([up]))
        with pytest.raises(RateLimitError) as caught:
            await chat(sdk(gateway))
        assert caught.value.response.headers["retry-after"] == "7"
        assert "x-ratelimit-limit-requests" not in caught.value.response.headers
        assert caught.value.code == "rate_limit_exceeded"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
async def test_image_variations_are_not_implemented_in_either_form(
    standing_with: StartGateway, sdk: MakeClient
) -> None:
    gateway = await standing_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    client = sdk(gateway)
    with pytest.raises(InternalServerError) as multipart:
        await client.images.create_variation(image=PNG, model="m")
    with pytest.raises(InternalServerError) as json:
        await client.post("/images/variations", body={"model": "m"}, cast_to=object)
    for caught in (multipart, json):
        assert (caught.value.status_code, caught.value.code) == (501, "api_not_implemented")
        assert caught.value.request_id is not None


async def test_bad_fields_are_bad_requests_that_name_the_field(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({})
    for fields, param in (
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"n": 1000}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ):
        with pytest.raises(BadRequestError) as caught:
            await chat(sdk(gateway), **{"model": "demo-chat", **fields})
        assert (caught.value.code, caught.value.param) == ("invalid_request", param)
