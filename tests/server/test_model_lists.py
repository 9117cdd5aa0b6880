"""Lists of models as clients read them, in each API format."""

from typing import Any

from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
ANTHROPIC = {"anthropic-version": "2023-06-01"}
MINE = {
    "name": "mine",
    "kind": "chat",
    "context_window": 32_768,
    "max_output_tokens": 4_096,
    "input_modalities": ["image", "text"],
    "output_modalities": ["text"],
    "features": ["reasoning", "tools"],
    "deprecated_at": "2027-01-31",
}
CONFIG: dict[str, Any] = {
    "channel": [
        channel(NOWHERE, models=["mine", "unknown"]),
        channel(NOWHERE, "vips", models=["other"], groups=["vip"]),
    ],
    "model": [MINE],
    "price": [{"model": "mine", "input_usd_per_million": 0.25, "output_usd_per_million": 2}],
    "group": [{"name": "vip", "price_multiplier": 0.8}],
    "account": [{"name": "acme", "groups": ["vip"]}],
}


async def read(gateway: RunningGateway, path: str, **headers: str) -> Any:
    async with gateway.client.get(f"{gateway.url}{path}", headers=headers) as response:
        assert response.status == 200, await response.text()
        return await response.json()


def strip(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name not in {"created", "owned_by", "object", "created_at"}}


async def test_models_say_what_they_can_and_cost(standing_with: StartGateway) -> None:
    gateway = await standing_with(CONFIG)
    listed = await read(gateway, "/v1/models")
    assert [strip(model) for model in listed["data"]] == [
        {
            "id": "mine",
            "kind": "chat",
            "context_window": 32_768,
            "max_output_tokens": 4_096,
            "input_modalities": ["text", "image"],
            "output_modalities": ["text"],
            "features": ["tools", "reasoning"],
            "deprecated_at": "2027-01-31T00:00:00Z",
            "pricing": {"prompt": "0.00000025", "completion": "0.000002"},
        },
        {"id": "unknown"},
    ]
    assert [await read(gateway, f"/v1/models/{model['id']}") for model in listed["data"]] == listed["data"]


async def test_a_key_sees_the_prices_and_models_of_its_group(standing_with: StartGateway) -> None:
    key = {"name": "k", "account": "acme", "secret": KEY, "group": "vip"}
    gateway = await standing_with({**CONFIG, "key": [key]})
    listed = {model["id"]: model for model in (await read(gateway, "/v1/models"))["data"]}
    assert listed.keys() == {"mine", "other", "unknown"}
    assert listed["mine"]["pricing"] == {"prompt": "0.0000002", "completion": "0.0000016"}


async def test_the_entity_tag_changes_with_a_price(standing_with: StartGateway) -> None:
    gateway = await standing_with({name: tables for name, tables in CONFIG.items() if name != "price"})
    admin, tags = {"Authorization": f"Bearer {gateway.admin_token}"}, []
    for price in (None, {"input_usd_per_million": 1}, {"input_usd_per_million": 2}):
        if price is not None:
            async with gateway.client.put(f"{gateway.url}/admin/v1/prices/mine", json=price, headers=admin) as response:
                assert response.status == 200, await response.text()
        async with gateway.client.get(f"{gateway.url}/v1/models") as response:
            tags.append(response.headers["ETag"])
        async with gateway.client.get(f"{gateway.url}/v1/models", headers={"If-None-Match": tags[-1]}) as response:
            assert response.status == 304
    assert len(set(tags)) == 3


async def test_anthropics_list_has_its_own_fields(standing_with: StartGateway) -> None:
    gateway = await standing_with(CONFIG)
    listed = await read(gateway, "/v1/models", **ANTHROPIC)
    assert [strip(model) for model in listed["data"]] == [
        {
            "type": "model",
            "id": "mine",
            "display_name": "mine",
            "lifecycle": "deprecated",
            "deprecated_at": "2027-01-31T00:00:00Z",
            "max_input_tokens": 32_768,
            "max_tokens": 4_096,
        },
        {"type": "model", "id": "unknown", "display_name": "unknown", "lifecycle": "active"},
    ]
    assert await read(gateway, "/v1/models/mine", **ANTHROPIC) == listed["data"][0]


async def test_googles_list_has_its_own_fields(standing_with: StartGateway) -> None:
    gateway = await standing_with(CONFIG)
    models = (await read(gateway, "/v1beta/models"))["models"]
    mine, unknown = models
    assert (mine["inputTokenLimit"], mine["outputTokenLimit"], mine["thinking"]) == (32_768, 4_096, True)
    assert not {"inputTokenLimit", "outputTokenLimit", "thinking"} & unknown.keys()
    assert await read(gateway, "/v1beta/models/mine") == mine
