"""Batches of which the standby has not heard, or not the last, when the primary is lost: each line is sent once."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import orjson
import pytest

from tests.support.batch_calls import ask
from tests.support.fast_provider import SwiftUpstream, slow
from tests.support.gateway import CHAT
from tests.support.gateway_process import eventually
from tests.support.lost_scene import WITHIN_S, LostScene, open_scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BATCHES, FILES = "/v1/batches", "/v1/files"
LINES = 24
ACTIVE = 2


@attrs.frozen
class Batches:
    """Batches of ``LINES`` lines each, all lines different. ``ids``: theirs."""

    up: SwiftUpstream
    scene: LostScene
    ids: list[str] = attrs.Factory(list)

    async def begin(self, node: int) -> None:
        number = len(self.ids) * 1000
        lines = b"\n".join(orjson.dumps(ask(number + line)) for line in range(LINES))
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", lines, filename="lines.jsonl")
        file = (await self.scene.get(node, "POST", FILES, data=form))["id"]
        batch = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
        self.ids.append((await self.scene.get(node, "POST", BATCHES, json=batch))["id"])

    def count_asked(self) -> Counter[str]:
        """How often each line has reached the provider."""
        return Counter(orjson.loads(seen.body)["messages"][0]["content"] for seen in self.up.seen if seen.body)

    async def await_asked(self, more: int) -> None:
        until = len(self.count_asked()) + more
        await eventually(lambda: asyncio.sleep(0, len(self.count_asked()) >= until), WITHIN_S)

    async def await_ends(self) -> list[Any]:
        ended: dict[str, Any] = {}

        async def have_ended() -> bool:
            for node, batch in enumerate(self.ids):
                status, body = await self.scene.ask(node, "GET", f"{BATCHES}/{batch}")
                if status == 200 and body["status"] == "completed":
                    ended[batch] = body
            return len(ended) == len(self.ids)

        await eventually(have_ended, 150)
        return list(ended.values())

    async def read_results(self, batch: Any) -> list[str]:
        """Return the lines that have a result."""
        found: list[str] = []
        for file in filter(None, (batch["output_file_id"], batch["error_file_id"])):
            content: bytes = await self.scene.get(0, "GET", f"{FILES}/{file}/content")
            found += (orjson.loads(line)["custom_id"] for line in content.splitlines())
        return found


@pytest.mark.parametrize("killed", [False, True])
async def test_every_batch_ends_after_a_failover_and_no_line_is_sent_twice(tmp_path: Path, *, killed: bool) -> None:
    """Half of the batches had begun before the standby fell behind, the others have not been heard of."""
    async with (
        SwiftUpstream(slow(0.2)) as up,
        open_scene(tmp_path, up.base_url, batches={"max_active": ACTIVE}) as scene,
    ):
        batches = Batches(up, scene)
        for node in range(2):
            await batches.begin(node)
        await batches.await_asked(4)
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        for node in range(2):
            await batches.begin(node)
        await batches.await_asked(16)
        await scene.lose(killed=killed)
        ended = await batches.await_ends()
        for batch in ended:
            results = await batches.read_results(batch)
            assert len(results) == len(set(results)) == LINES
        answered = sum(batch["request_counts"]["completed"] for batch in ended)
        unknown = LINES * len(ended) - answered
        assert unknown <= (2 * ACTIVE if killed else 0), "more lines are unknown than were under way"
        assert set(batches.count_asked().values()) == {1}
        completed = "SELECT count(*) FROM requests WHERE outcome = 'completed'"

        async def have_rows() -> bool:
            return bool(await scene.pair.ask(scene.pair.standby, completed) == answered)

        await eventually(have_rows, 30)  # rows of the last lines may wait a second for their commit
        charges = "SELECT count(*) FROM entries WHERE kind = 'charge'"
        assert answered <= await scene.pair.ask(scene.pair.standby, charges) <= answered + unknown
        for each in scene.nodes:
            await each.check_books()


async def test_the_batches_of_a_node_that_stays_dead_are_named(tmp_path: Path) -> None:
    async with (
        SwiftUpstream(slow(0.2)) as up,
        open_scene(tmp_path, up.base_url, batches={"max_active": ACTIVE}) as scene,
    ):
        batches = Batches(up, scene)
        await batches.begin(1)
        await batches.await_asked(4)
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        await batches.await_asked(4)
        first, second = scene.nodes
        await second.kill()
        await scene.pair.lose()
        await batches.await_ends()
        (outdated,) = first.read_log("job_outdated")
        assert outdated["job"] == f"batch {batches.ids[0]}"
        await eventually(lambda: asyncio.sleep(0, bool(first.read_log("node_not_restored"))), WITHIN_S)
        dead = outdated["node"].partition(":")[0]
        assert [each["node"] for each in first.read_log("node_not_restored")] == [dead]
