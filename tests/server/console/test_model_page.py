"""The page of a model: what it is, where it is served, how to call it, and where a request would go."""

import re
import shlex
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, get_args

import orjson
import pytest

from gateway.domain.operation import OPERATIONS, Operation
from gateway.server.console.models import write_curl
from tests.support.console_people import Person, invite, make_administrator
from tests.support.gateway import CHAT, KEY, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

CONFIG: dict[str, Any] = {
    "channel": [
        channel("http://127.0.0.1:9/v1", models=["seer", "org/sub model"], name="near", priority=5),
        channel("http://127.0.0.1:9/v1", models=["seer"], name="far"),
        channel("http://127.0.0.1:9/v1", models=["other"], name="aside"),
    ],
    "model": [
        {"name": "seer", "kind": "chat", "context_window": 32_768, "max_output_tokens": 4_096,
         "input_modalities": ["text", "image"], "output_modalities": ["text"], "features": ["tools", "reasoning"],
         "deprecated_at": "2031-01-02"},
    ],
    "price": [{"model": "seer", "input_usd_per_million": 3, "output_usd_per_million": 15}],
    "route": [{"name": "fast", "about": "Quick answers", "step": [{"models": ["seer"]}, {"models": ["gone"]}]}],
}  # fmt: skip
_TAGS = re.compile(r"<[^>]+>")


def read_text(page: str) -> str:
    return " ".join(_TAGS.sub(" ", page.partition("<main")[2]).split())


@pytest.fixture
async def people(gateway_with: StartGateway) -> AsyncIterator[dict[str, Person]]:
    async with AsyncExitStack() as stack:
        ada = await make_administrator(await gateway_with(CONFIG))
        found = {"ada": ada, "ben": await invite(ada, "ben", "member", "acme")}
        for person in found.values():
            stack.push_async_callback(person.session.close)
        yield found


async def test_a_page_says_what_a_model_is_and_where_it_is_served(people: dict[str, Person]) -> None:
    status, page = await people["ada"].open("/models/seer")
    text = read_text(page)
    assert status == 200
    for words in (
        "Context window 32,768 tokens",
        "Longest answer 4,096 tokens",
        "Reads text, image",
        "Generates text",
        "Features tools, reasoning",
        "Input $3.00 per million tokens Output $15.00 per million tokens From the configuration file.",
        "2031-01-02",
        "Routes that use this model fast step 1",
    ):
        assert words in text
    assert page.index("/console/channels/near") < page.index("/console/channels/far")
    assert 'href="/console/playground?model=seer"' in page


async def test_the_dry_run_names_each_channel_with_its_rank_or_its_obstacle(people: dict[str, Person]) -> None:
    ada = people["ada"]
    _, page = await ada.open("/models/seer")
    text = read_text(page)
    assert "near choice 1" in text
    assert "far choice 2" in text
    assert "aside not used does not offer the model" in text
    _, key = await ada.call("POST", "/keys", {"name": "k", "account": "acme", "models": ["other"], "quota_usd": 2})
    status, page = await ada.open(f"/models/seer?key={key['id']}")
    assert status == 200
    assert "Left on the key $2.00" in read_text(page)
    assert '<p class="notice bad inert-text">' in page
    assert (await ada.open("/models/seer?key=999"))[0] == 404


async def test_members_see_what_a_model_is_but_no_channels(people: dict[str, Person]) -> None:
    status, page = await people["ben"].open("/models/seer")
    assert (status, "Dry run" in page, "/console/channels" in page) == (200, False, False)
    assert "Context window 32,768 tokens" in read_text(page)
    status, page = await people["ben"].open("/models/fast")
    assert (status, "Dry run" in page, "Quick answers" in page) == (200, False, False)


async def test_a_page_says_who_used_the_model_and_a_member_sees_only_his_own(gateway_with: StartGateway) -> None:
    other_key = "sk-" + "o" * 44 + "ther"
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(
            {
                "account": [{"name": "acme"}, {"name": "north"}],
                "key": [
                    {"name": "test", "account": "acme", "secret": KEY},
                    {"name": "sensor", "account": "north", "secret": other_key},
                ],
                "channel": [channel(up.base_url, "near", models=["seer"], model_map={"oracle": "seer"})],
                "billing": {"unpriced": "free"},
            }
        )
        for key, user, count in ((KEY, "u-17", 2), (other_key, "u-<b>", 1)):
            for _ in range(count):
                body = {"model": "seer", "messages": [{"role": "user", "content": "Hi"}], "user": user}
                async with gateway.client.post(
                    gateway.url + CHAT, json=body, headers={"Authorization": f"Bearer {key}"}
                ) as sent:
                    assert sent.status == 200
    ada = await make_administrator(gateway)
    ben = await invite(ada, "ben", "viewer", "north")
    await ada.call("PUT", "/prices/seer", {"input_usd_per_million": 4, "output_usd_per_million": 8})
    _, whole = await ada.open("/models/seer")
    _, part = await ben.open("/models/seer")
    _, unused = await ada.open("/models/oracle")
    for person in (ada, ben):
        await person.session.close()
    text = read_text(whole)
    for words in (
        "Failed 0", "100 % answered",
        "near custom healthy 0, 1 100 % 100 % 3 100 %",
        "acme 2", "north 1", "acme/test 2", "north/sensor 1", "u-17 2", "u-&lt;b&gt; 1",
        "Other names oracle on near", "Set in the console or on the command line. Since 2",
    ):  # fmt: skip
        assert words in text, words
    assert whole.count('class="good"') == 1
    text = read_text(part)
    assert ("north/sensor 1" in text, "u-&lt;b&gt; 1" in text) == (True, True)
    assert not [words for words in ("acme", "u-17", "near", "Channels", "oracle") if words in text]
    assert "No requests in this period." in read_text(unused)


async def test_a_route_has_a_page_with_its_steps(people: dict[str, Person]) -> None:
    status, page = await people["ada"].open("/models/fast")
    text = read_text(page)
    assert status == 200
    assert "Quick answers" in text
    assert 'href="/console/models/seer"' in page
    assert "gone no channel" in text
    assert "1 gets the request" in text
    _, listed = await people["ada"].open("/models")
    assert all(f'href="/console/models/{name}"' in listed for name in ("fast", "seer", "org%2Fsub%20model"))
    assert read_text(listed).count(" Route ") == 1


async def test_the_playground_offers_routes_after_the_models(people: dict[str, Person]) -> None:
    _, page = await people["ben"].open("/playground")
    assert page.index('<option value="seer"') < page.index('label="Routes"') < page.index('<option value="fast"')
    _, page = await people["ada"].open("/routes/fast")
    assert 'value="seer"' in page
    assert '<option value="fast"' not in page, "a route has no route as a step"


@pytest.mark.parametrize(("name", "status"), [("org%2Fsub%20model", 200), ("nothing", 404), ("%3Cscript%3E", 404)])
async def test_names_are_found_as_they_are(people: dict[str, Person], name: str, status: int) -> None:
    found, page = await people["ada"].open(f"/models/{name}")
    assert found == status
    assert "<script>" not in page


@pytest.mark.parametrize("operation", get_args(Operation))
def test_a_curl_line_calls_the_operation_with_the_model_however_it_is_called(operation: Operation) -> None:
    model = 'it\'s "a" model'
    line = write_curl("http://127.0.0.1:8080", operation, model)
    if not line:
        return
    words = shlex.split(line.replace("\\\n", ""))
    assert words[0] == "curl"
    assert f"http://127.0.0.1:8080{OPERATIONS[operation].path}" in words
    if operation == "transcriptions":
        assert words[words.index("--form-string") + 1] == f"model={model}"
    else:
        assert orjson.loads(words[words.index("-d") + 1])["model"] == model
