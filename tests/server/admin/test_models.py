"""What the admin API says that requests for a model can ask for."""

from typing import Any

import pytest

from tests.support.admin_calls import AdminApi
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
PENALTIES = ["presence_penalty", "frequency_penalty"]
SAMPLING = ["temperature", "top_p", *PENALTIES]
VIDEO = {"seconds": [4, 8, 12], "references": True}
EXPECTED_BY_MODEL: dict[str, dict[str, Any]] = {
    "gpt-5-mini": {"ignored_parameters": SAMPLING},
    "gpt-5.1": {"ignored_while_reasoning": SAMPLING},
    "claude-opus-4-7": {"ignored_parameters": [*SAMPLING, "seed"]},
    "both": {},  # the unknown model of OpenAI takes all
    "m": {},
    "sora-2": {"sizes": ["720x1280", "1280x720"], **VIDEO},
    "films": {"sizes": ["720x1280", "1280x720", "1024x1792", "1792x1024"], **VIDEO},  # of either model
    "gpt-image-1": {
        "sizes": ["1024x1024", "1536x1024", "1024x1536"], "max_images": 10, "edits": True, "masks": True,
    },
    "tts-1": {"voices": ["alloy", "ash", "coral", "echo", "fable", "nova", "onyx", "sage", "shimmer"]},
    "aunt": {"voices": ["anna", "otto"]},
    "painter": {"sizes": [], "edits": False},  # the channel makes a request for each image
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "channel": [
        channel(NOWHERE, "o", provider="openai",
                models=["gpt-5-mini", "gpt-5.1", "sora-2", "sora-2-pro", "gpt-image-1", "tts-1", "both", "m"]),
        channel(NOWHERE, "a", provider="anthropic", models=["claude-opus-4-7", "both"],
                model_map={"both": "claude-opus-4-7"}),
        channel(NOWHERE, "c", models=["m", "aunt", "painter"], fan_out=True),
    ],
    "model": [
        {"name": "aunt", "kind": "speech", "voices": ["anna", "otto"]},
        {"name": "painter", "max_n": 1, "edits": False, "sizes": []},
    ],
    "route": [{"name": "films", "step": [{"models": ["sora-2"]}, {"models": ["sora-2-pro"]}]}],
}  # fmt: skip


@pytest.fixture
async def admin(gateway_with: StartGateway) -> AdminApi:
    return AdminApi(await gateway_with(CONFIG))


async def test_a_model_asked_by_name_says_what_requests_can_ask_for(admin: AdminApi) -> None:
    described: dict[str, dict[str, Any]] = {}
    for model in EXPECTED_BY_MODEL:
        (view,) = (await admin("GET", f"/models?name={model}"))["data"]
        described[model] = {name: value for name, value in view["options"].items() if value not in (None, [])}
        if view["options"]["sizes"] == []:
            described[model]["sizes"] = []  # which is more than unknown: the model takes no size
    assert described == EXPECTED_BY_MODEL


async def test_a_model_asked_by_name_is_as_in_the_list_of_all(admin: AdminApi) -> None:
    listed = {view["id"]: view for view in (await admin("GET", "/models"))["data"]}
    assert EXPECTED_BY_MODEL.keys() < listed.keys()
    for name, view in listed.items():
        (asked,) = (await admin("GET", f"/models?name={name}"))["data"]
        assert {**asked, "options": None} == {**view, "options": None}


async def test_lists_leave_the_options_out_and_no_other_name_is_found(admin: AdminApi) -> None:
    assert {model["options"] for model in (await admin("GET", "/models"))["data"]} == {None}
    assert (await admin("GET", "/models?name=gpt-5"))["data"] == []
