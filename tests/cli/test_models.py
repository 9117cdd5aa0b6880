"""``gateway models``: what the models are and can do, and which of them fit."""

from typing import Any

from tests.support.cli_operator import log, sit_down  # noqa: F401 - fixtures
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1", models=["seer", "reader", "unknown"])],
    "model": [
        {"name": "seer", "kind": "chat", "context_window": 32_768, "input_modalities": ["text", "image"],
         "features": ["tools", "reasoning"]},
        {"name": "reader", "kind": "embedding", "context_window": 512, "input_modalities": ["text"]},
    ],
}  # fmt: skip


async def test_models_are_filtered_by_what_they_can(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with, CONFIG)
    for options, names in (
        ((), {"seer", "reader", "unknown"}),
        (("--kind", "embedding"), {"reader"}),
        (("--modality", "text"), {"seer", "reader"}),
        (("--modality", "text", "--modality", "image"), {"seer"}),
        (("--feature", "tools"), {"seer"}),
        (("--min-context", "512"), {"seer", "reader"}),
        (("--min-context", "513", "--feature", "reasoning", "--kind", "chat"), {"seer"}),
        (("--feature", "caching"), set()),
    ):
        result = await operator.type("models", "list", *options)
        listing = result.stdout
        assert {name for name in ("seer", "reader", "unknown") if name in listing} == names, (options, listing)
        assert ("No model is known to fit" in result.stderr) == (not names)


async def test_the_table_has_kind_and_context(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with, CONFIG)
    (row,) = [line for line in (await operator.see("models")).splitlines() if "seer" in line]
    assert {"chat", "32768"} <= set(row.split())
