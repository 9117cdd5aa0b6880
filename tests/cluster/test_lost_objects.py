"""Files, responses and named requests of which the standby has not heard when the primary is lost.

Each is found afterwards, and no request runs twice.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.gateway import CHAT
from tests.support.gateway_process import eventually
from tests.support.lost_scene import WITHIN_S, open_scene
from tests.support.lost_servers import check_books
from tests.support.scripted_upstream import COMPLETION, Received, ScriptedUpstream, answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FILES, RESPONSES = "/v1/files", "/v1/responses"
SLOW = "slow"


@pytest.mark.parametrize("killed", [False, True])
async def test_every_file_is_found_after_a_failover(tmp_path: Path, *, killed: bool) -> None:
    async with open_scene(tmp_path) as scene:

        async def add(number: int) -> str:
            form = aiohttp.FormData({"purpose": "user_data"})
            form.add_field("file", f"text {number}", filename=f"{number}.txt")
            return str((await scene.get(number, "POST", FILES, data=form))["id"])

        before = await asyncio.gather(*map(add, range(2)))
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        ids = [*before, *await asyncio.gather(*map(add, range(2, 8)))]
        await scene.get(0, "DELETE", f"{FILES}/{ids[0]}")
        size = {"bytes": 6, "filename": "u.txt", "purpose": "user_data", "mime_type": "text/plain"}
        upload = (await scene.get(1, "POST", "/v1/uploads", json=size))["id"]
        form = aiohttp.FormData()
        form.add_field("data", b"upload", filename="part")
        part = (await scene.get(1, "POST", f"/v1/uploads/{upload}/parts", data=form))["id"]
        await scene.lose(killed=killed)

        async def are_found() -> bool:
            answers = [
                await scene.ask(number + at, "GET", f"{FILES}/{ids[number]}/content")
                for number in range(1, 8)
                for at in range(2)
            ]
            return answers == [(200, f"text {number}".encode()) for number in range(1, 8) for _ in range(2)]

        await eventually(are_found, WITHIN_S)

        async def is_gone() -> bool:  # 503: another node may bring it back
            return [(await scene.ask(node, "GET", f"{FILES}/{ids[0]}"))[0] for node in range(2)] == [404, 404]

        await eventually(is_gone, WITHIN_S)
        done = await scene.get(0, "POST", f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})
        assert await scene.get(1, "GET", f"{FILES}/{done['file']['id']}/content") == b"upload"
        listed = (await scene.get(0, "GET", FILES))["data"]
        assert {each["id"] for each in listed} == {*ids[1:], done["file"]["id"]}


class Provider:
    """Answers chats; those whose prompt is ``SLOW`` when they may."""

    def __init__(self) -> None:
        self.prompts: list[Sequence[str]] = []
        self.may_answer = asyncio.Event()

    async def note(self, received: Received) -> None:
        if received.body:
            prompt = [str(each["content"]) for each in received.json["messages"]]
            self.prompts.append(prompt)
            if prompt[-1] == SLOW:
                await self.may_answer.wait()


@pytest.mark.parametrize("killed", [False, True])
async def test_every_kept_response_is_shown_and_continued_after_a_failover(tmp_path: Path, *, killed: bool) -> None:
    provider = Provider()
    async with ScriptedUpstream([provider.note, answer(COMPLETION)]) as up, open_scene(tmp_path, up.base_url) as scene:
        ids: list[str] = []

        async def say(text: str, **more: Any) -> None:
            previous = {"previous_response_id": ids[-1]} if ids else {}
            body = {"model": "m", "input": text, **previous, **more}
            ids.append((await scene.get(len(ids), "POST", RESPONSES, json=body))["id"])

        await say("0")
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        for number in range(1, 6):
            await say(f"{number}")

        async def are_shown() -> bool:
            shown = [await scene.ask(node, "GET", f"{RESPONSES}/{one}") for node in range(2) for one in ids]
            return [(status, status == 200 and body["id"]) for status, body in shown] == [(200, one) for one in ids * 2]

        await eventually(are_shown, WITHIN_S)  # a response is stored after its answer
        await scene.lose(killed=killed)
        await eventually(are_shown, WITHIN_S)
        await say("6")
        assert [text for text in provider.prompts[-1] if text.isdigit()] == [f"{number}" for number in range(7)]
        assert len(provider.prompts) == len(ids)
        await check_books(scene.nodes, scene.pair.name_survivor(), len(ids))


@pytest.mark.parametrize("killed", [False, True])
async def test_no_named_request_runs_twice_over_a_failover(tmp_path: Path, *, killed: bool) -> None:
    """One of them is answered while there is no database."""
    provider = Provider()
    async with ScriptedUpstream([provider.note, answer(COMPLETION)]) as up, open_scene(tmp_path, up.base_url) as scene:

        async def call(node: int, name: str) -> tuple[int, bytes, bool]:
            body = {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": 10}
            url, headers = scene.nodes[node % 2].url + CHAT, {"Idempotency-Key": f"name {name}"}
            async with scene.caller.post(url, json=body, headers=headers) as response:
                return response.status, await response.read(), "Idempotent-Replayed" in response.headers

        async def has_come() -> bool:
            return [SLOW] in provider.prompts

        names = [f"{number}" for number in range(8)]
        first = {names[0]: await call(0, names[0])}
        await eventually(scene.pair.is_level, 30)
        await scene.pair.detach()
        first |= {name: await call(number, name) for number, name in enumerate(names[1:])}
        slow = asyncio.create_task(call(0, SLOW))
        await eventually(has_come, WITHIN_S)
        await asyncio.to_thread(scene.pair.primary.signal, signal.SIGKILL)
        provider.may_answer.set()
        first[SLOW] = await slow
        assert {status for status, _, _ in first.values()} == {200}
        await scene.lose(killed=killed)

        async def repeat(node: int, name: str) -> None:
            async def is_answered() -> bool:
                status, body, replayed = await call(node, name)
                assert status in {200, 409, 503}, body
                assert status != 200 or (replayed, body) == (True, first[name][1])
                return status == 200

            await eventually(is_answered, WITHIN_S)

        await asyncio.gather(*(repeat(node, name) for name in first for node in range(2)))
        assert Counter(prompt[0] for prompt in provider.prompts) == dict.fromkeys(first, 1)
        await check_books(scene.nodes, scene.pair.name_survivor(), len(first), repeated=2 * len(first))
