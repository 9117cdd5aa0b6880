"""The audit log in the console."""

import re
from typing import Any

from tests.support.console_people import make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

NOWHERE = "http://127.0.0.1:9/v1"
_PYTHON = re.compile(r"None|True|False|\[&#39;|\[\]|\{&#39;")


async def test_a_change_of_lists_and_flags_is_shown_without_the_spelling_of_python(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"channel": [channel(NOWHERE, "up")]})
    ada = await make_administrator(gateway)
    made = {"name": "lab", "provider": "custom", "base_url": NOWHERE, "models": ["m", "m2"], "price_multiplier": 2e-05}
    assert (await ada.call("POST", "/channels?check=none", made))[0] == 201
    change: dict[str, Any] = {"models": ["m"], "model_map": {"fast": "m"}, "fan_out": True, "rpm": 3}
    assert (await ada.call("PATCH", "/channels/lab", change))[0] == 200
    _, page = await ada.open("/audit")
    shown = "".join(re.findall(r"<dd.*?</dd>", page, re.DOTALL))
    for text in ("m, m2 → m<", "fast=m", "false → true", "0.00002", "nothing → 3"):
        assert text in shown, text
    assert not _PYTHON.findall(shown)
    await ada.session.close()
