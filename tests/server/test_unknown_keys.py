"""An address that shows many unknown keys, at the doors."""

import asyncio

import pytest

from gateway.auth.unknown_keys import FREE_ATTEMPTS, MAX_DELAYED
from gateway.server.context import SERVICES
from tests.support.gateway import KEY
from tests.support.raw_client import connect, read_answer
from tests.support.started_gateways import StartGateway


def write(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: a", *lines]).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("path", ["/v1/models", "/admin/v1/status", "/v1/messages/batches"])
async def test_unknown_keys_are_slowed_and_a_good_one_beside_them_works_at_once(
    gateway_with: StartGateway, path: str
) -> None:
    gateway = await gateway_with({})
    waking = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await waking.wait()

    keys = gateway.app[SERVICES].auth.unknown_keys
    keys.free_attempts, keys._sleep = FREE_ATTEMPTS, sleep
    reader, writer = await connect(gateway.url)
    bad = write(path, "Authorization: Bearer sk-unknown-key-of-a-stranger")
    for _ in range(FREE_ATTEMPTS):
        writer.write(bad)
        assert (await read_answer(reader)).status == 401
    held = [await connect(gateway.url) for _ in range(MAX_DELAYED)]
    for _, each in held:
        each.write(bad)
    async with asyncio.timeout(5):
        while keys._find("127.0.0.1").delayed_count < MAX_DELAYED:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
    writer.write(bad)
    found = await read_answer(reader)
    assert found.status == 429
    assert b"rate_limit" in found.body
    assert int(found.headers["retry-after"]) > 0
    writer.write(write("/v1/models", f"Authorization: Bearer {KEY}"))
    assert (await read_answer(reader)).status == 200
    writer.write(write("/admin/v1/status", f"Authorization: Bearer {gateway.admin_token}"))
    assert (await read_answer(reader)).status == 200
    writer.write(write("/v1/models"))  # who shows no key has guessed none
    assert (await read_answer(reader)).status == 401
    waking.set()
    for answered, each in held:
        assert (await read_answer(answered)).status == 401
        each.close()
    writer.close()
