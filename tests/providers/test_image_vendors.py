"""Images of vendors through a gateway: the key, the form of the request, and the image that comes back."""

import base64
from typing import Any

import attrs
import pytest

from tests.support.gateway import channel
from tests.support.image_providers import draw
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

GENERATIONS = "/v1/images/generations"
PNG = base64.b64encode(draw()).decode()
FAL = {"images": [{"url": f"data:image/png;base64,{PNG}", "content_type": "image/png"}], "has_nsfw_concepts": [False]}
STABILITY = {"image": PNG, "finish_reason": "SUCCESS", "seed": 7}


async def start(gateway_with: StartGateway, up: ScriptedUpstream, slug: str, model: str) -> Any:
    return await gateway_with({"channel": [channel(up.base_url, provider=slug, model_map={"m": model})]})


@pytest.mark.parametrize(
    ("sent_as", "answered"),
    [
        (("fal", "fal-ai/flux/dev", "/v1/fal-ai/flux/dev", "Key provider-key"), FAL),
        (("stability", "sd3.5-large", "/v1/stable-image/generate/sd3", "Bearer provider-key"), STABILITY),
    ],
)
async def test_an_image_is_asked_for_and_returned(
    standing_with: StartGateway, sent_as: tuple[str, str, str, str], answered: dict[str, Any]
) -> None:
    slug, model, path, key = sent_as
    async with ScriptedUpstream([answer(answered)]) as up:
        gateway = await start(standing_with, up, slug, model)
        asked = {"model": "m", "prompt": "a cat", "response_format": "b64_json"}
        async with gateway.post(asked, path=GENERATIONS) as response:
            assert response.status == 200, await response.text()
            assert (await response.json())["data"][0]["b64_json"] == PNG
        (sent,) = up.received
        assert (sent.method, sent.path, sent.headers["authorization"]) == ("POST", path, key)
        assert b"a cat" in sent.body
        (record,) = await gateway.rows(1)
        assert (record.outcome, record.images) == ("completed", 1)


@pytest.mark.parametrize(
    ("slug", "model", "refused", "status"),
    [
        (
            "fal",
            "fal-ai/flux/dev",
            {"detail": [{"loc": ["body", "prompt"], "msg": "Refused", "type": "content_policy_violation"}]},
            422,
        ),
        ("stability", "stable-image-core", {"id": "1", "name": "content_moderation", "errors": ["Flagged"]}, 403),
    ],
)
async def test_a_block_is_the_clients_mistake_and_not_the_channels(
    standing_with: StartGateway, slug: str, model: str, refused: dict[str, Any], status: int
) -> None:
    async with ScriptedUpstream([answer(refused, status)]) as up:
        gateway = await start(standing_with, up, slug, model)
        async with gateway.post({"model": "m", "prompt": "a cat"}, path=GENERATIONS) as response:
            assert response.status == 400
            assert (await response.json())["error"]["code"] == "sensitive_words_detected"


TASK = "7f0a0a7e-4a3c-4d1c-9a0e-2f3f5b0f6d11"
DATA = f"data:image/png;base64,{PNG}"
PRICE = {"model": "*", "usd_per_image": 0.04}
NANOS = 40_000_000


@attrs.frozen
class TaskVendor:
    """A vendor that answers with a task: its paths, its key, and what it answers from the first call to an end."""

    slug: str
    model: str
    paths: tuple[str, str]
    key: tuple[str, str]
    answers: dict[str, Any]


TASK_VENDORS = (
    TaskVendor(
        "bfl",
        "flux-kontext-pro",
        ("/v1/flux-kontext-pro", f"/v1/get_result?id={TASK}"),
        ("x-key", "provider-key"),
        {
            "begun": {"id": TASK, "polling_url": f"https://api.us1.bfl.ai/v1/get_result?id={TASK}", "cost": 4.0},
            "pending": {"id": TASK, "status": "Pending", "result": None},
            "completed": {"id": TASK, "status": "Ready", "result": {"sample": DATA}},
            "blocked": {"id": TASK, "status": "Content Moderated", "details": {"Moderation Reasons": ["Filter"]}},
        },
    ),
    TaskVendor(
        "luma",
        "uni-1",
        ("/v1/generations", f"/v1/generations/{TASK}"),
        ("authorization", "Bearer provider-key"),
        {
            "begun": {"id": TASK, "state": "queued"},
            "pending": {"id": TASK, "state": "processing"},
            "completed": {"id": TASK, "state": "completed", "output": [{"type": "image", "url": DATA}]},
            "blocked": {"id": TASK, "state": "failed", "failure_code": "content_moderated", "failure_reason": "No"},
        },
    ),
)


@pytest.mark.parametrize("end", ["completed", "blocked"])
@pytest.mark.parametrize("vendor", TASK_VENDORS, ids=lambda vendor: vendor.slug)
async def test_a_task_is_polled_and_paid_for_if_it_has_an_image(
    standing_with: StartGateway, vendor: TaskVendor, end: str
) -> None:
    made = end == "completed"
    async with ScriptedUpstream(*([answer(vendor.answers[name])] for name in ("begun", "pending", end))) as up:
        models = channel(up.base_url, provider=vendor.slug, model_map={"m": vendor.model}, total_timeout_s=60)
        gateway = await standing_with({"channel": [models], "price": [PRICE]})
        asked = {"model": "m", "prompt": "a cat", "response_format": "b64_json"}
        async with gateway.post(asked, path=GENERATIONS) as response:
            body = await response.json()
            assert response.status == (200 if made else 400), body
        assert (body["data"][0]["b64_json"] if made else body["error"]["code"]) == (
            PNG if made else "sensitive_words_detected"
        )
        begun, polled = vendor.paths
        assert [(sent.method, sent.path) for sent in up.received] == [("POST", begun), *[("GET", polled)] * 2]
        name, value = vendor.key
        assert {sent.headers[name] for sent in up.received} == {value}
        (record,) = await gateway.rows(1)
        assert (record.outcome, record.cost_nanos, record.reserved_nanos) == (end, NANOS if made else 0, NANOS)
