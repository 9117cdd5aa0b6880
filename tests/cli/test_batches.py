"""The commands about batches, as an operator sees them."""

import aiohttp
import orjson

from gateway.server.context import SERVICES
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""
CHAT = "/v1/chat/completions"


async def begin(operator: Operator, data: bytes) -> str:
    """The id of a batch with that input, once it has ended."""
    gateway, batches = operator.gateway, operator.gateway.app[SERVICES].batches
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", data, filename="lines.jsonl")
    async with gateway.client.post(f"{gateway.url}/v1/files", data=form) as response:
        file = await response.json()
    new = {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"}
    async with gateway.client.post(f"{gateway.url}/v1/batches", json=new) as response:
        batch_id = str((await response.json())["id"])
    await batches._tasks.wait()
    return batch_id


async def test_batches_are_listed_shown_and_cancelled(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    none = await operator.type("batches")
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "No batches recorded.\n")
    body = {"model": "demo-chat", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    done, wrong = await begin(operator, orjson.dumps(line)), await begin(operator, b"{")
    table = (await operator.see("batches", width=140)).splitlines()
    assert [row.split()[-6:] for row in table] == [
        ["ID", "ACCOUNT", "MODEL", "STATUS", "DONE", "FAILED"],
        [done, "acme", "demo-chat", "completed", "1/1", "-"],
        [wrong, "acme", "-", "failed", "0/0", "-"],
    ]
    for words, expected in (((), [wrong, done]), (("--status", "failed"), [wrong]), (("--live",), [])):
        assert [one["id"] for one in (await operator.ask("batches", *words))["data"]] == expected
    shown = await operator.see("batches", "show", wrong[:14])
    assert "invalid_json_line" in shown
    assert (await operator.ask("batches", "show", done))["requests"] == 1
    cancelled = await operator.type("batches", "cancel", done)
    assert (cancelled.exit_code, "The batch is completed" in cancelled.stderr) == (1, True)
    await operator.gateway.rows(1)
