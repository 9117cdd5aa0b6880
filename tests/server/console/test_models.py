"""The page of models: what they are and can do, and filters for each of that."""

import re
from typing import Any

import pytest

from tests.support.console_people import make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1", models=["seer", "reader", "unknown"])],
    "model": [
        {"name": "seer", "kind": "chat", "context_window": 32_768, "input_modalities": ["text", "image"],
         "output_modalities": ["text"], "features": ["tools", "reasoning"]},
        {"name": "reader", "kind": "embedding", "context_window": 512, "input_modalities": ["text"]},
    ],
}  # fmt: skip
ROW = re.compile(r'<th scope="row"[^>]*><span><a class="inert-text" href="[^"]*">(\w+)</a>')


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", {"seer", "reader", "unknown"}),
        ("?kind=embedding", {"reader"}),
        ("?modality=text", {"seer", "reader"}),
        ("?modality=image", {"seer"}),
        ("?feature=reasoning", {"seer"}),
        ("?context=513", {"seer"}),
        ("?search=e&kind=chat&feature=tools&context=512&price=none", {"seer"}),
        ("?kind=video", set()),
    ],
)
async def test_models_are_filtered_by_what_they_can(gateway_with: StartGateway, query: str, names: set[str]) -> None:
    ada = await make_administrator(await gateway_with(CONFIG))
    status, page = await ada.open(f"/models{query}")
    await ada.session.close()
    assert status == 200
    assert set(ROW.findall(page)) == names
    assert ("No model matches" in page) == (not names)


async def test_a_row_says_what_a_model_can_and_leads_to_the_playground(gateway_with: StartGateway) -> None:
    ada = await make_administrator(await gateway_with(CONFIG))
    _, page = await ada.open("/models?search=seer")
    await ada.session.close()
    assert all(text in page for text in ("text, image", "tools, reasoning"))
    assert 'href="/console/playground?model=seer"' in page
