"""Batches by the ``openai`` library, and what they need."""

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
from openai import AsyncOpenAI
from openai.types import Batch

from tests.support.fast_provider import SwiftUpstream
from tests.support.fault_scene import PRICE
from tests.support.gateway import KEY, channel

OTHER = "sk-test-key-of-another-account"
CONFIG: dict[str, Any] = {
    "account": [{"name": "ours"}, {"name": "theirs"}],
    "key": [
        {"name": "ours", "account": "ours", "secret": KEY},
        {"name": "theirs", "account": "theirs", "secret": OTHER},
    ],
}
CHAT = "/v1/chat/completions"
RUNNING = {"validating", "in_progress", "finalizing", "cancelling"}


def make_line(number: int, url: str = CHAT, **body: Any) -> dict[str, Any]:
    usual = {"model": "demo-chat", "messages": [{"role": "user", "content": f"line {number}"}], "max_tokens": 16}
    return {"custom_id": f"c{number}", "method": "POST", "url": url, "body": body or usual}


async def start(client: AsyncOpenAI, lines: Sequence[Any], endpoint: Any = CHAT, **more: Any) -> Batch:
    """A batch of ``lines``; one of bytes is written as it is."""
    data = b"\n".join(line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
    file = await client.files.create(file=("lines.jsonl", data), purpose="batch")
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


async def await_end(client: AsyncOpenAI, batch: Batch) -> Batch:
    async with asyncio.timeout(30):
        while batch.status in RUNNING:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def await_requests(up: SwiftUpstream, count: int) -> None:
    async with asyncio.timeout(20):
        while len(up.seen) < count:  # noqa: ASYNC110 - the provider has no event for that
            await asyncio.sleep(0.01)


async def read_results(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = (await client.files.content(file_id)).content.splitlines()
    results = [orjson.loads(line) for line in lines]
    assert len({one["custom_id"] for one in results}) == len({one["id"] for one in results}) == len(results)
    return {one["custom_id"]: one for one in results}


def limited(up: SwiftUpstream, **key: Any) -> dict[str, Any]:
    """A gateway with one provider; ``key``: limits of our key."""
    keys = [{"name": "ours", "account": "ours", "secret": KEY, **key}]
    return {"channel": [channel(up.base_url)], "account": [{"name": "ours"}], "key": keys, "price": [PRICE]}


def ask(number: int) -> dict[str, Any]:
    return make_line(number, model="m", messages=[{"role": "user", "content": f"line {number}"}], max_tokens=9)
