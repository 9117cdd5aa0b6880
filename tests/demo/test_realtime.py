"""The demo's realtime sessions: what becomes of a response whose client leaves."""

import asyncio
import gc

import aiohttp
import pytest

from gateway.demo.server import DemoUpstream

SESSIONS = 20


async def test_a_client_that_leaves_a_response_leaves_no_failed_task(caplog: pytest.LogCaptureFixture) -> None:
    """Whether the connection is closing or closed when the response ends."""
    demo = DemoUpstream(pace_s=0.0005)
    await demo.start()

    async def leave(session: aiohttp.ClientSession) -> None:
        async with session.ws_connect(f"{demo.base_url}/realtime?model=demo-realtime") as socket:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
            await socket.send_json({"type": "conversation.item.create", "item": item})
            await socket.send_json({"type": "response.create", "response": {}})
            async for message in socket:
                if ".delta" in message.data:
                    break
            socket._writer.transport.abort()

    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {demo.api_key}"}) as session:
            await asyncio.gather(*(leave(session) for _ in range(SESSIONS)))
    finally:
        await demo.stop()
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_sound_that_is_not_base64_is_an_error_event_and_the_session_goes_on() -> None:
    demo = DemoUpstream(pace_s=0)
    await demo.start()
    try:
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {demo.api_key}"}) as session,
            session.ws_connect(f"{demo.base_url}/realtime?model=demo-realtime") as socket,
        ):
            await socket.receive_json()
            await socket.send_json({"type": "input_audio_buffer.append", "event_id": "mine", "audio": "AAA"})
            error = await socket.receive_json()
            assert (error["type"], error["error"]["event_id"]) == ("error", "mine")
            await socket.send_json({"type": "input_audio_buffer.clear"})
            assert (await socket.receive_json())["type"] == "input_audio_buffer.cleared"
    finally:
        await demo.stop()
