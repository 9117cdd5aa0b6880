"""What an upload costs in CPU a megabyte, from the caller's socket through the disk to the provider's: printed.

``make bench-parts`` shows it. Ways take turns within one run, and medians are compared with each
other only: a machine's speed and its other work are in both.
"""

import statistics
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.uploads import BLOCK, MB, UploadProvider, edit, lead, name_file, site

pytestmark = pytest.mark.cost

ROUNDS = 3
SIZE_MB = 20
MOST = 4.0
"""Times what a form costs a megabyte: base64 is a third more to write, and has to be made."""


async def measure(gateway: GatewayProcess, model: str, count: int) -> float:
    """Milliseconds of CPU of the whole process, all its threads and the system's share, a megabyte."""
    process = psutil.Process(gateway.pid)
    before = process.cpu_times()
    for number in range(count):
        assert (await edit(gateway.url, number, BLOCK, model=model)).status == 200
    after = process.cpu_times()
    found: float = (after.user + after.system - before.user - before.system) * 1000 / (count * SIZE_MB)
    return found


async def test_an_upload_into_json_costs_little_more_than_one_that_stays_a_form(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(UploadProvider())
        gemini = {"provider": "gemini", "base_url": f"{up.origin}/v1beta"}
        json = lead(up, "json", models=["other"], model_map={"other": "gemini-2.5-flash-image"}, **gemini)
        gateway = await stack.enter_async_context(GatewayProcess(tmp_path / "data", site(lead(up, "form"), json)))
        ways = {"m": "a form", "other": "JSON with base64"}
        costs: dict[str, list[float]] = {model: [] for model in ways}
        for model in ways:
            await measure(gateway, model, 1)
        for _ in range(ROUNDS):
            for model, seen in costs.items():
                seen.append(await measure(gateway, model, 2))
        form, base64 = (statistics.median(seen) for seen in costs.values())
        for model, way in ways.items():
            print(f"\nan upload of {SIZE_MB} MB as {way}: {statistics.median(costs[model]):.2f} ms of CPU a MB", end="")
        assert up.taken[-1].length > SIZE_MB * MB * 4 // 3
        assert up.taken[0].holds(name_file(0), BLOCK)
        assert base64 < MOST * form
