"""The demo's pictures as the real SDK, and a plain client, see them."""

import asyncio
import io
import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import pytest
from openai.types import ImageEditCompletedEvent, ImageGenCompletedEvent, ImageGenPartialImageEvent, ImagesResponse

from gateway.demo.images import Files
from gateway.demo.server import DemoUpstream
from tests.support import pixels

ASK: Any = {"model": "demo-image", "prompt": "a lake at dawn", "size": "256x256"}
GREEN, SEE_THROUGH = b"\x10\xf0\x20", b"\0\0\0\0"
IMAGE = pixels.plain(256, 256, GREEN)
HALF_OPEN = pixels.write(256, 256, (b"\0" + SEE_THROUGH * 128 + b"\0\0\0\xff" * 128) * 256, colour=6)


def unpacked(reply: ImagesResponse) -> list[pixels.DecodedPng]:
    return [pixels.read(b64decode(item.b64_json or "")) for item in reply.data or []]


def form(*parts: tuple[str, str | bytes], **fields: str) -> aiohttp.FormData:
    """An edit; bytes are files."""
    data = aiohttp.FormData({"model": "demo-image", "prompt": "a hill", **fields}, default_to_multipart=True)
    for name, value in parts:
        if isinstance(value, bytes):
            data.add_field(name, value, filename="some.png", content_type="image/png")
        else:
            data.add_field(name, value)
    return data


async def refused(plain: aiohttp.ClientSession, url: str, **asked: Any) -> tuple[int, dict[str, Any]]:
    async with plain.post(url, **asked) as response:
        body = await response.json()
    assert list(body) == ["error"]
    assert body["error"].pop("message")
    assert body["error"].pop("type") == "invalid_request_error"
    return response.status, body["error"]


async def test_a_prompt_is_drawn_at_an_address_that_needs_no_key(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.images.generate(**ASK)
    (item,) = reply.data or []
    assert item.url is not None
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/files/[0-9a-f]{32}\.png", item.url)
    async with aiohttp.ClientSession() as anonymous, anonymous.get(item.url) as response:
        assert (response.status, response.content_type) == (200, "image/png")
        image = pixels.read(await response.read())
    assert (image.width, image.height) == (256, 256)
    assert image.texts[b"Description"] == b"a lake at dawn"
    assert "a lake at dawn" in (item.revised_prompt or "")


@pytest.mark.parametrize("size", ["256x256", "512x512", "1024x1024", "1536x1024", "1024x1536", "auto", None])
async def test_every_size_is_drawn_as_asked(sdk: openai.AsyncOpenAI, size: str | None) -> None:
    asked = {**ASK, "size": size or openai.omit, "response_format": "b64_json"}
    reply = await sdk.images.generate(**asked)
    (image,) = unpacked(reply)
    reported = "1024x1024" if size in {"auto", None} else size
    assert f"{image.width}x{image.height}" == reply.size == reported
    assert (reply.output_format, reply.background, reply.quality) == ("png", "opaque", "high")


async def test_as_many_different_images_as_asked_and_the_same_again(sdk: openai.AsyncOpenAI) -> None:
    first = unpacked(await sdk.images.generate(**ASK, n=3, response_format="b64_json"))
    again = unpacked(await sdk.images.generate(**ASK, n=3, response_format="b64_json"))
    assert len({image.rows for image in first}) == 3
    assert first == again


async def test_usage_adds_up(sdk: openai.AsyncOpenAI) -> None:
    usage = (await sdk.images.generate(**ASK, n=2)).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 128, 132)
    assert usage.input_tokens_details.model_dump() == {"image_tokens": 0, "text_tokens": 4}


@pytest.mark.parametrize("partials", [0, 1, 2, 3])
async def test_a_streamed_image_gets_clearer_until_it_is_the_same(sdk: openai.AsyncOpenAI, partials: int) -> None:
    (whole,) = unpacked(await sdk.images.generate(**ASK, response_format="b64_json"))
    stream = await sdk.images.generate(**ASK, stream=True, partial_images=partials)
    *early, last = [event async for event in stream]
    assert [ImageGenPartialImageEvent.model_validate(event.model_dump()) for event in early] == early
    assert ImageGenCompletedEvent.model_validate(last.model_dump()) == last
    assert [getattr(event, "partial_image_index", None) for event in early] == list(range(partials))
    seen = [pixels.read(b64decode(event.b64_json)) for event in (*early, last)]
    assert seen[-1].rows == whole.rows
    assert {(image.width, image.height) for image in seen} == {(256, 256)}
    colours = [len({row[at : at + 3] for row in image.rows for at in range(0, 768, 3)}) for image in seen]
    assert colours == sorted(set(colours))


async def test_several_streamed_images_come_one_after_the_other(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.images.generate(**ASK, n=2)
    stream = await sdk.images.generate(**ASK, n=2, stream=True, partial_images=1)
    events: list[Any] = [event async for event in stream]
    kinds = [event.type.removeprefix("image_generation.") for event in events]
    assert kinds == ["partial_image", "completed"] * 2
    assert events[1].b64_json != events[3].b64_json
    assert reply.usage is not None
    assert events[1].usage.total_tokens + events[3].usage.total_tokens == reply.usage.total_tokens


async def test_events_are_named_as_the_convention_names_them(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    asked = {**ASK, "stream": True, "partial_images": 1}
    async with plain.post(f"{demo.base_url}/images/generations", json=asked) as response:
        assert response.content_type == "text/event-stream"
        *events, rest = (await response.text()).split("\n\n")
    assert rest == ""
    assert [event.split("\n")[0] for event in events] == [
        "event: image_generation.partial_image",
        "event: image_generation.completed",
    ]
    assert [event.split("\n")[1][:7] for event in events] == ["data: {"] * 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x" * 32_001}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"n": "2"}, "n"),
        ({"n": True}, "n"),
        ({"size": "64x64"}, "size"),
        ({"size": 256}, "size"),
        ({"response_format": "svg"}, "response_format"),
        ({"output_format": "webp"}, "output_format"),
        ({"background": "transparent"}, "background"),
        ({"quality": "best"}, "quality"),
        ({"stream": "true"}, "stream"),
        ({"partial_images": 4}, "partial_images"),
    ],
)
async def test_a_bad_field_is_named(
    plain: aiohttp.ClientSession, demo: DemoUpstream, fields: dict[str, Any], param: str
) -> None:
    url = f"{demo.base_url}/images/generations"
    assert await refused(plain, url, json={**ASK, **fields}) == (400, {"param": param, "code": None})


async def test_the_sizes_that_are_drawn_are_listed(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="256x256, 512x512, 1024x1024, 1536x1024, 1024x1536"):
        await sdk.images.generate(**{**ASK, "size": "1x1"})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_block_can_be_tried_out(sdk: openai.AsyncOpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.images.generate(**{**ASK, "prompt": "a hill [Blocked]"}, stream=stream)
    assert caught.value.code == "moderation_blocked"
    assert (await sdk.images.generate(**{**ASK, "prompt": "an unblocked road"})).data


async def test_another_models_images_are_not_drawn(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await sdk.images.generate(**{**ASK, "model": "demo-chat"})
    with pytest.raises(openai.NotFoundError):
        await sdk.images.edit(model="demo-speech", prompt="x", image=IMAGE)


async def test_an_address_that_was_not_given_out_leads_nowhere(demo: DemoUpstream) -> None:
    url = demo.base_url.removesuffix("/v1") + "/files/" + "0" * 32 + ".png"
    async with aiohttp.ClientSession() as anonymous, anonymous.get(url) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "unknown_url")


@pytest.mark.parametrize(
    "give",
    [
        lambda data: data,
        io.BytesIO,
        lambda data: ("a.png", data, "image/png"),
        lambda data: [data],
        lambda data: [data, ("b.jpg", b"\xff\xd8\xff\xe0 more", "image/jpeg")],
    ],
    ids=["bytes", "file", "tuple", "list", "several"],
)
async def test_an_edit_is_the_image_of_its_prompt_in_a_frame(
    sdk: openai.AsyncOpenAI, give: Callable[[bytes], Any]
) -> None:
    drawn = await sdk.images.generate(**ASK, response_format="b64_json")
    edited = await sdk.images.edit(**ASK, image=give(IMAGE), response_format="b64_json")
    (one,), (other,) = unpacked(drawn), unpacked(edited)
    assert [row[48:-48] for row in one.rows[16:-16]] == [row[48:-48] for row in other.rows[16:-16]]
    frame = bytes(255 - value for value in one.rows[0][:3])
    assert {row[:48] for row in other.rows} == {row[-48:] for row in other.rows} == {frame * 16}
    assert {other.rows[0], other.rows[-1]} == {frame * 256}


async def test_a_mask_with_transparency_is_taken(sdk: openai.AsyncOpenAI) -> None:
    reply = await sdk.images.edit(**ASK, image=IMAGE, mask=HALF_OPEN, response_format="b64_json", n=2)
    first, second = unpacked(reply)
    assert first.rows != second.rows


async def test_an_image_of_another_kind_is_taken_and_the_usual_size_drawn(sdk: openai.AsyncOpenAI) -> None:
    for other in (b"\xff\xd8\xff\xe0" + bytes(30), b"RIFF\x20\0\0\0WEBPVP8 " + bytes(20)):
        asked = {**ASK, "size": openai.omit}
        (edited,) = unpacked(await sdk.images.edit(**asked, image=other, response_format="b64_json"))
        assert (edited.width, edited.height) == (1024, 1024)


async def test_an_edit_can_be_streamed(sdk: openai.AsyncOpenAI) -> None:
    (whole,) = unpacked(await sdk.images.edit(**ASK, image=IMAGE, response_format="b64_json"))
    events = [event async for event in await sdk.images.edit(**ASK, image=IMAGE, stream=True, partial_images=2)]
    assert [event.type for event in events] == ["image_edit.partial_image"] * 2 + ["image_edit.completed"]
    assert ImageEditCompletedEvent.model_validate(events[-1].model_dump()) == events[-1]
    assert pixels.read(b64decode(events[-1].b64_json)).rows == whole.rows


async def test_images_that_were_sent_are_counted(sdk: openai.AsyncOpenAI) -> None:
    usage = (await sdk.images.edit(**ASK, image=[IMAGE] * 3)).usage
    assert usage is not None
    assert usage.input_tokens_details.image_tokens == 768
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens == 768 + 4 + 64


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (form(), "image"),
        (form(("image", "text")), "image"),
        (form(("image", b"GIF89a")), "image"),
        (form(("image", b"")), "image"),
        (form(*[("image[]", IMAGE)] * 17), "image"),
        (form(("image", IMAGE), ("image", b"nothing")), "image"),
        (form(("image", IMAGE), n="two"), "n"),
        (form(("image", IMAGE), n="9" * 5_000), "n"),
        (form(("image", IMAGE), stream="maybe"), "stream"),
        (form(("image", IMAGE), prompt=" "), "prompt"),
        (form(("image", IMAGE), model=""), "model"),
        (form(("image", IMAGE), size="7x7"), "size"),
    ],
)  # fmt: skip
async def test_a_bad_edit_is_refused(
    plain: aiohttp.ClientSession, demo: DemoUpstream, data: aiohttp.FormData, param: str | None
) -> None:
    status, error = await refused(plain, f"{demo.base_url}/images/edits", data=data)
    assert (status, error) == (400, {"param": param, "code": None})


BOUND = "multipart/form-data; boundary=b"
NAMED = b"--b\r\nContent-Disposition: form-data; name="


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        (BOUND, b"no form at all"),
        (BOUND, b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
        (BOUND, NAMED + b'"n"\r\n\r\n\xff\r\n--b--\r\n'),
        (BOUND, b"--b\r\nContent-Type: multipart/mixed; boundary=c\r\n\r\n--c--\r\n--b--\r\n"),
        (BOUND, b"--b\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\nx\r\n--b--\r\n"),
    ],
)
async def test_a_body_that_is_no_form_is_refused(
    plain: aiohttp.ClientSession, demo: DemoUpstream, media_type: str, body: bytes
) -> None:
    headers = {"Content-Type": media_type}
    status, _ = await refused(plain, f"{demo.base_url}/images/edits", data=body, headers=headers)
    assert status == 400


async def test_fields_may_come_behind_the_files(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    data = aiohttp.FormData()
    data.add_field("image[]", IMAGE, filename="a.png")
    for name, value in (("n", "2"), ("prompt", "a hill"), ("model", "demo-image"), ("size", "256x256"), ("user", "")):
        data.add_field(name, value)
    async with plain.post(f"{demo.base_url}/images/edits", data=data) as response:
        assert response.status == 200
        assert len((await response.json())["data"]) == 2


async def test_a_file_that_is_too_large_is_refused(plain: aiohttp.ClientSession, demo: DemoUpstream) -> None:
    with io.BytesIO(IMAGE + bytes(33 * 1024 * 1024)) as large:
        data = aiohttp.FormData({"model": "demo-image", "prompt": "x"})
        data.add_field("image", large, filename="a.png")
        async with plain.post(f"{demo.base_url}/images/edits", data=data) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (413, None)


async def test_words_still_stream_while_images_are_drawn(sdk: openai.AsyncOpenAI) -> None:
    """A word that had to wait for all ten images would come last."""
    asked = {**ASK, "size": "1024x1024", "n": 10}
    drawing = asyncio.create_task(sdk.images.generate(**asked))
    await asyncio.sleep(0.02)
    await sdk.chat.completions.create(model="demo-chat", messages=[{"role": "user", "content": "Hello"}])
    assert not drawing.done()
    assert len((await drawing).data or []) == 10


async def test_images_are_kept_for_a_while() -> None:
    files = Files(keep_s=0.02)
    name = files.add(b"picture")
    assert files.find(name) == b"picture"
    await asyncio.sleep(0.05)
    assert files.find(name) is None


async def test_the_oldest_images_go_when_there_are_too_many() -> None:
    files = Files(max_files=3, max_bytes=10)
    few = [files.add(b"x") for _ in range(4)]
    assert [files.find(name) for name in few] == [None, b"x", b"x", b"x"]
    large = files.add(b"y" * 9)
    assert [files.find(name) for name in (*few, large)] == [None, None, None, b"x", b"y" * 9]
    larger = files.add(b"z" * 99)
    assert (files.find(large), files.find(larger)) == (None, b"z" * 99)
    files.clear()
    assert files.find(larger) is None


async def test_a_stopped_demo_forgets_its_images() -> None:
    upstream = DemoUpstream(pace_s=0)
    await upstream.start()
    async with openai.AsyncOpenAI(base_url=upstream.base_url, api_key=upstream.api_key) as client:
        reply = await client.images.generate(**ASK)
    await upstream.stop()
    await upstream.start()
    try:
        assert reply.data
        path = (reply.data[0].url or "").rpartition("/")[2]
        url = upstream.base_url.removesuffix("v1") + f"files/{path}"
        async with aiohttp.ClientSession() as anonymous, anonymous.get(url) as response:
            assert response.status == 404
    finally:
        await upstream.stop()
