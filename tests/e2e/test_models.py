"""The model list with the real SDK."""

from typing import Any

import pytest
from openai import NotFoundError

from tests.support.gateway import KEY, channel
from tests.support.sdk_clients import MakeClient
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"


async def test_a_fresh_gateway_lists_the_demo_models(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({})
    models = [model async for model in sdk(gateway).models.list()]
    assert [model.id for model in models] == [
        "demo-chat",
        "demo-embedding",
        "demo-image",
        "demo-realtime",
        "demo-speech",
        "demo-transcribe",
        "demo-video",
        "demo-video-blocked",
        "demo-video-fail",
        "demo-video-slow",
    ]
    assert {model.object for model in models} == {"model"}
    assert all(model.created > 0 and model.owned_by for model in models)


@pytest.mark.parametrize("model", ["org/name:tag", "plain", "org/deep/er", "with space", "ünïcode", "50%", "a+b"])
async def test_any_model_id_can_be_retrieved(standing_with: StartGateway, sdk: MakeClient, model: str) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE, models=["m", model])]})
    found = await sdk(gateway).models.retrieve(model)
    assert found.id == model


async def test_a_model_nobody_serves_is_not_found_by_every_road(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({"channel": [channel(NOWHERE)]})
    client = sdk(gateway)
    calls: list[Any] = [
        client.models.retrieve("no/such"),
        client.chat.completions.create(model="no/such", messages=[{"role": "user", "content": "hi"}]),
        client.chat.completions.create(model="no/such", messages=[{"role": "user", "content": "hi"}], stream=True),
        client.embeddings.create(model="no/such", input="hi"),
    ]
    for call in calls:
        with pytest.raises(NotFoundError) as caught:
            await call
        assert caught.value.code == "model_not_found"
        assert caught.value.param == "model"
        assert "GET /v1/models" in caught.value.message
    await gateway.rows(3)


async def test_a_key_is_shown_only_the_models_it_may_use(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with(
        {
            "channel": [channel(NOWHERE, models=["open/a", "open/b", "closed/c"])],
            "key": [{"name": "k", "account": "acme", "secret": KEY, "models": ["open/*"]}],
        }
    )
    client = sdk(gateway)
    assert [model.id async for model in client.models.list()] == ["open/a", "open/b"]
    with pytest.raises(NotFoundError):
        await client.models.retrieve("closed/c")
