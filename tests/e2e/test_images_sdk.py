"""The real SDK asks for pictures, over every kind of channel that makes them."""

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import APIError, AsyncOpenAI, BadRequestError, InternalServerError, PermissionDeniedError, RateLimitError

from tests.support.gateway import KEY, RunningGateway
from tests.support.image_providers import draw, draw_mask, measure
from tests.support.sdk_clients import MakeClient
from tests.support.sdk_images import KINDS, Kind, Place, open_kind
from tests.support.started_gateways import StartGateway

PROMPT = "a lighthouse at night"
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
EDITING = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.edits], ids=lambda kind: kind.name)
FAKES = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.provider], ids=lambda kind: kind.name)
MASKING = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.masks], ids=lambda kind: kind.name)
LISTED = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.listed], ids=lambda kind: kind.name)
UNMASKED = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.edits and not kind.masks], ids=lambda kind: kind.name
)


@pytest_asyncio.fixture(loop_scope="session")
async def place(kind: Kind, gateway_with: StartGateway, standing_with: StartGateway) -> AsyncIterator[Place]:
    """The demo is a part of its gateway; over the others one stands."""
    async with open_kind(kind, standing_with if kind.provider else gateway_with) as opened:
        yield opened


def read_size(size: str) -> tuple[int, int]:
    width, _, height = size.partition("x")
    return int(width), int(height)


async def download(gateway: RunningGateway, url: str | None) -> bytes:
    """What lies at an address of the gateway's, for somebody without a key."""
    assert url is not None
    assert url.startswith(f"{gateway.url}/media/"), url
    async with gateway.client.get(url, headers={"Authorization": ""}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "image/png"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        return await response.read()


async def ask(client: AsyncOpenAI, place: Place, **more: Any) -> Any:
    return await client.images.generate(model=place.model, prompt=PROMPT, **more)


@ALL
async def test_without_a_word_images_come_as_addresses_that_anybody_can_open(place: Place, sdk: MakeClient) -> None:
    answer = await ask(sdk(place.gateway), place)
    assert answer.created > 1_700_000_000
    (item,) = answer.data
    assert item.b64_json is None
    assert measure(await download(place.gateway, item.url))
    (row,) = await place.gateway.rows(1)
    assert (row.operation, row.status, row.outcome, row.images) == ("images", 200, "completed", 1)


@ALL
async def test_base64_comes_where_it_is_asked_for(place: Place, sdk: MakeClient) -> None:
    answer = await ask(sdk(place.gateway), place, response_format="b64_json")
    (item,) = answer.data
    assert item.url is None
    assert measure(base64.b64decode(item.b64_json, validate=True))


@ALL
async def test_a_image_has_the_size_that_was_asked_for(place: Place, sdk: MakeClient) -> None:
    answer = await ask(sdk(place.gateway), place, size=place.kind.size)
    image = await download(place.gateway, answer.data[0].url)
    assert measure(image) == read_size(place.kind.size)


@ALL
async def test_several_images_come_in_one_answer_for_one_charge(place: Place, sdk: MakeClient) -> None:
    answer = await ask(sdk(place.gateway), place, n=3)
    assert len(answer.data) == 3
    assert len({item.url for item in answer.data}) == 3
    (row,) = await place.gateway.rows(1)
    assert row.images == 3


@ALL
async def test_a_stream_ends_with_the_image(place: Place, sdk: MakeClient) -> None:
    events = [event async for event in await ask(sdk(place.gateway), place, stream=True)]
    assert events[-1].type == "image_generation.completed"
    assert measure(base64.b64decode(events[-1].b64_json, validate=True))
    assert events[-1].usage.total_tokens >= 0
    assert [event.type for event in events].count("image_generation.completed") == 1
    (row,) = await place.gateway.rows(1)
    assert (row.stream, row.outcome, row.images) == (True, "completed", 1)


@ALL
async def test_partial_images_come_where_the_channel_has_them(place: Place, sdk: MakeClient) -> None:
    events = [event async for event in await ask(sdk(place.gateway), place, stream=True, partial_images=2)]
    partial = [event for event in events if event.type == "image_generation.partial_image"]
    assert len(partial) == (2 if place.kind.name in {"demo", "openai"} else 0)
    assert [event.partial_image_index for event in partial] == list(range(len(partial)))
    assert events[-1].type == "image_generation.completed"


@EDITING
async def test_one_image_is_edited(place: Place, sdk: MakeClient) -> None:
    answer = await sdk(place.gateway).images.edit(
        model=place.model, prompt="make it red", image=draw(64, 64), response_format="url"
    )
    assert measure(await download(place.gateway, answer.data[0].url))  # type: ignore[index]
    (row,) = await place.gateway.rows(1)
    assert (row.operation, row.images, row.outcome) == ("image_edits", 1, "completed")
    if place.provider is not None:
        (heard,) = place.provider.heard
        assert heard.sources == (draw(64, 64),)
        assert heard.mask is None
        assert "make it red" in heard.prompt


@EDITING
async def test_images_come_as_bytes_as_a_path_or_as_a_tuple(place: Place, sdk: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "source.png"
    path.write_bytes(draw(64, 64, 3))
    given: list[Any] = [draw(64, 64, 1), path, ("named.png", draw(64, 64, 2), "image/png"), path.open("rb")]
    for one in given:
        answer = await sdk(place.gateway).images.edit(model=place.model, prompt="again", image=one)
        assert measure(await download(place.gateway, answer.data[0].url))  # type: ignore[index]
    given[3].close()
    if place.provider is not None:
        sources = [heard.sources for heard in place.provider.heard]
        assert sources == [(draw(64, 64, shade),) for shade in (1, 3, 2, 3)]


@EDITING
async def test_a_list_of_images_is_edited(place: Place, sdk: MakeClient) -> None:
    count = min(2, place.kind.sources)
    sources = [draw(64, 64, shade) for shade in range(count)]
    answer = await sdk(place.gateway).images.edit(
        model=place.model, prompt="both", image=sources, response_format="b64_json"
    )
    assert measure(base64.b64decode(answer.data[0].b64_json or ""))  # type: ignore[index]
    if place.provider is not None:
        assert place.provider.heard[0].sources == tuple(sources)


@MASKING
async def test_a_mask_goes_with_the_image(place: Place, sdk: MakeClient) -> None:
    answer = await sdk(place.gateway).images.edit(
        model=place.model, prompt="there", image=draw(64, 64), mask=draw_mask(64, 64)
    )
    assert measure(await download(place.gateway, answer.data[0].url))  # type: ignore[index]
    if place.provider is not None:
        assert place.provider.heard[0].mask == draw_mask(64, 64)


@UNMASKED
async def test_a_mask_is_refused_where_there_is_none_before_anybody_is_asked(place: Place, sdk: MakeClient) -> None:
    with pytest.raises(BadRequestError) as refused:
        await sdk(place.gateway).images.edit(model=place.model, prompt="x", image=draw(), mask=draw())
    assert (refused.value.code, refused.value.param) == ("invalid_request", "mask")
    assert place.provider is not None
    assert place.provider.requests == []


@EDITING
async def test_an_edit_is_streamed(place: Place, sdk: MakeClient) -> None:
    stream = await sdk(place.gateway).images.edit(model=place.model, prompt="x", image=draw(64, 64), stream=True)
    events = [event async for event in stream]
    assert events[-1].type == "image_edit.completed"
    assert measure(base64.b64decode(events[-1].b64_json))


@FAKES
async def test_a_blocked_image_is_told_as_such_and_costs_nothing(
    kind: Kind, standing_with: StartGateway, sdk: MakeClient
) -> None:
    price = {"price": [{"model": "*", "usd_per_image": 1.0}]}
    async with open_kind(kind, standing_with, "block", **price) as place:
        with pytest.raises(BadRequestError) as blocked:
            await ask(sdk(place.gateway), place)
        assert blocked.value.code == "sensitive_words_detected"
        assert blocked.value.response.headers["x-should-retry"] == "false"
        (row,) = await place.gateway.rows(1)
        assert (row.status, row.cost_nanos, row.images, row.attempts) == (400, 0, 0, 1)
        assert row.reserved_nanos == 1_000_000_000


@FAKES
async def test_a_blocked_stream_is_told_as_such(kind: Kind, standing_with: StartGateway, sdk: MakeClient) -> None:
    async with open_kind(kind, standing_with, "block") as place:
        with pytest.raises(APIError) as blocked:
            _ = [event async for event in await ask(sdk(place.gateway), place, stream=True)]
        assert blocked.value.code == "sensitive_words_detected"
        (row,) = await place.gateway.rows(1)
        assert (row.cost_nanos, row.images) == (0, 0)


@FAKES
async def test_a_image_that_fails_costs_nothing(kind: Kind, standing_with: StartGateway, sdk: MakeClient) -> None:
    price = {"price": [{"model": "*", "usd_per_image": 1.0}]}
    async with open_kind(kind, standing_with, "fail", **price) as place:
        with pytest.raises(InternalServerError) as failed:
            await ask(sdk(place.gateway), place)
        assert failed.value.code == "upstream_error"
        (row,) = await place.gateway.rows(1)
        assert (row.status, row.cost_nanos, row.outcome) == (502, 0, "failed")


@FAKES
async def test_another_channel_paints_where_one_fails(kind: Kind, standing_with: StartGateway, sdk: MakeClient) -> None:
    assert kind.provider is not None
    async with kind.provider("fail") as broken, kind.provider() as well:
        channels = [broken.channel("broken", priority=1), well.channel("well")]
        gateway = await standing_with({"channel": channels})
        answer = await sdk(gateway).images.generate(model="m", prompt=PROMPT)
        assert measure(await download(gateway, answer.data[0].url))  # type: ignore[index]
        (row,) = await gateway.rows(1)
        assert (row.channel, row.attempts) == ("well", 2)


@FAKES
async def test_a_part_that_fails_fails_the_whole_and_nothing_is_charged(
    kind: Kind, standing_with: StartGateway, sdk: MakeClient
) -> None:
    config = {"price": [{"model": "*", "usd_per_image": 1.0}], "model": [{"name": "m", "max_n": 1}]}
    async with open_kind(kind, standing_with, "ok", "fail", "ok", **config) as place:
        with pytest.raises(InternalServerError):
            await ask(sdk(place.gateway), place, n=3)
        (row,) = await place.gateway.rows(1)
        assert (row.cost_nanos, row.images) == (0, 0)
        assert row.reserved_nanos == 3_000_000_000


@FAKES
async def test_more_than_the_model_makes_is_refused_unless_the_channel_fans_out(
    kind: Kind, standing_with: StartGateway, sdk: MakeClient
) -> None:
    assert kind.provider is not None
    async with kind.provider() as provider:
        config = {"channel": [provider.channel()], "model": [{"name": "m", "max_n": 2}]}
        gateway = await standing_with(config)
        with pytest.raises(BadRequestError) as refused:
            await sdk(gateway).images.generate(model="m", prompt=PROMPT, n=3)
        assert (refused.value.code, refused.value.param) == ("invalid_request", "n")
        assert "1 to 2" in refused.value.message
        assert provider.requests == []


@LISTED
async def test_a_size_the_model_has_not_is_refused_and_those_it_has_are_listed(place: Place, sdk: MakeClient) -> None:
    with pytest.raises(BadRequestError) as refused:
        await ask(sdk(place.gateway), place, size="77x33")
    assert (refused.value.code, refused.value.param) == ("invalid_request", "size")
    assert place.kind.size in refused.value.message
    assert place.provider is None or place.provider.requests == []


async def test_the_key_s_cap_is_held_for_all_the_images_that_are_asked_for(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    config = {
        "price": [{"model": "demo-image", "usd_per_image": 0.4}],
        "account": [{"name": "acme"}],
        "key": [{"name": "test", "account": "acme", "secret": KEY, "quota_usd": 1.0}],
    }
    gateway = await gateway_with(config)
    client = sdk(gateway)
    with pytest.raises(PermissionDeniedError) as refused:
        await client.images.generate(model="demo-image", prompt=PROMPT, n=3, size="256x256")
    assert refused.value.code == "insufficient_quota"
    answer = await client.images.generate(model="demo-image", prompt=PROMPT, n=2, size="256x256")
    assert len(answer.data or ()) == 2
    with pytest.raises(PermissionDeniedError):
        await client.images.edit(model="demo-image", prompt=PROMPT, image=draw(256, 256))
    rows = await gateway.rows(3)
    assert sum(row.cost_nanos for row in rows) == 800_000_000


async def test_the_key_s_rate_limits_are_for_images_too(gateway_with: StartGateway, sdk: MakeClient) -> None:
    limited = {"name": "test", "account": "acme", "secret": KEY, "rpm": 1}
    gateway = await gateway_with({"account": [{"name": "acme"}], "key": [limited]})
    client = sdk(gateway)
    await client.images.generate(model="demo-image", prompt=PROMPT, size="256x256")
    with pytest.raises(RateLimitError) as refused:
        await client.images.edit(model="demo-image", prompt=PROMPT, image=draw(256, 256))
    assert refused.value.code == "rate_limit_exceeded"
    assert int(refused.value.response.headers["Retry-After"]) > 0


@pytest.mark.parametrize("form", [False, True])
async def test_variations_are_not_implemented_in_either_form(standing_with: StartGateway, form: bool) -> None:
    gateway = await standing_with({})
    body: dict[str, Any] = {"data": {"image": io.BytesIO(draw(512, 512))}} if form else {"json": {"model": "m"}}
    async with gateway.client.post(f"{gateway.url}/v1/images/variations", **body) as response:
        assert response.status == 501
        error = (await response.json())["error"]
    assert (error["code"], error["type"]) == ("api_not_implemented", "new_api_error")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_sdk_hears_that_variations_are_not_implemented(standing_with: StartGateway, sdk: MakeClient) -> None:
    gateway = await standing_with({})
    with pytest.raises(InternalServerError) as refused:
        await sdk(gateway, max_retries=2).images.create_variation(image=draw())
    assert (refused.value.status_code, refused.value.code) == (501, "api_not_implemented")


async def test_an_address_of_the_provider_s_is_passed_only_where_its_channel_says_so(
    gateway_with: StartGateway, sdk: MakeClient
) -> None:
    kind = next(kind for kind in KINDS if kind.name == "custom")
    assert kind.provider is not None
    async with kind.provider() as provider:
        for passes in (False, True):
            gateway = await gateway_with({"channel": [provider.channel(pass_urls=passes)]})
            answer = await sdk(gateway).images.generate(model="m", prompt=PROMPT)
            assert ((answer.data or [])[0].url or "").startswith(f"{provider.origin}/") is passes


async def test_words_on_the_list_are_refused_before_anybody_is_asked(
    gateway_with: StartGateway, sdk: MakeClient, tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("# none of these\nforbidden fruit\n")
    kind = KINDS[1]
    async with open_kind(kind, gateway_with, safety={"words_file": str(words)}) as place:
        client = sdk(place.gateway)
        for call in (
            client.images.generate(model="m", prompt="a Forbidden  FRUIT basket"),
            client.images.edit(model="m", prompt="forbidden fruit", image=draw()),
        ):
            with pytest.raises(BadRequestError) as refused:
                await call
            assert (refused.value.code, refused.value.param) == ("sensitive_words_detected", "prompt")
        assert place.provider is not None
        assert place.provider.requests == []
        assert [row.cost_nanos for row in await place.gateway.rows(2)] == [0, 0]
