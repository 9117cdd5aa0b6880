"""Base64 in steps: the same result as at once, invalid text refused also at the edge of a step, and others served."""

import asyncio
from base64 import b64encode

import pytest

from gateway.media import base64_steps
from gateway.media.base64_steps import decode_base64, encode_base64

LARGE = bytes(range(256)) * 12 * 1024  # four steps of base64
STEP = base64_steps._STEP_CHARS


async def decode(text: str) -> bytes:
    return b"".join([piece async for piece in decode_base64(text)])


@pytest.mark.parametrize("data", [b"", b"a", b"abc", LARGE, LARGE + b"a"])
async def test_steps_give_what_one_call_gives(data: bytes) -> None:
    text = await encode_base64(data)
    assert text == b64encode(data).decode()
    assert await decode(text) == data


@pytest.mark.parametrize(
    "text",
    ["abc", "ab=c", "a===", "\u00e9abc", "ab c", "a" * (STEP - 1) + "=" + "aaaa", "a" * STEP + "!aaa"],
    ids=["length", "padding", "too much padding", "not ASCII", "space", "padding at a step's end", "second step"],
)
async def test_invalid_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        await decode(text)


async def test_other_tasks_run_between_two_steps() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await decode(await encode_base64(LARGE))
    counting.cancel()
    assert turns >= len(LARGE) // STEP + len(b64encode(LARGE)) // STEP
