"""A picture's way to its caller: looked at all through, in steps, and trusted no further than who asked for it."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import attrs

from gateway.domain.image import Image, ImageForm
from gateway.errors import ProviderBadResponse
from gateway.media.image_delivery import ImageDelivery
from tests.support.image_providers import draw
from tests.support.image_services import Files, StoreDouble, ask, image_services, play
from tests.support.image_services import images as answer
from tests.support.table_rows import table_rows

PNG = draw()
LONG = PNG + bytes(range(256)) * 12_000
"""Three megabytes that begin as a picture does: of four steps."""


def give(image: Image, form: ImageForm, files: Mapping[str, bytes] | None = None, **more: Any) -> Any:
    """What becomes of ``image``: it, or the fault; what was kept, and what was fetched."""

    async def scene() -> Any:
        up = image_services(play(answer()), **more)
        shelf, table = StoreDouble(), Files(files or {})
        gallery = ImageDelivery(table, shelf)
        inference = attrs.evolve(ask(), origin="http://gw")
        try:
            given: Any = await gallery.deliver(up.begin(inference), inference, image, form)
        except ProviderBadResponse as fault:
            given = fault
        return given, shelf.kept, table.asked

    return asyncio.run(scene())


def code(data: bytes) -> str:
    return base64.b64encode(data).decode()


@table_rows("data", [PNG, LONG, LONG[:-1], LONG[:-2]])
def test_whole_and_in_steps_a_image_is_the_same_in_either_form(data: bytes) -> None:
    given, kept, _ = give(Image(code(data)), "url")
    assert kept == [data]
    assert given.url.startswith("http://gw/")
    assert give(Image(code(data)), "b64_json")[0].data == code(data)
    given, _, asked = give(Image(url="http://files/1"), "b64_json", {"http://files/1": data})
    assert given.data == code(data)
    assert asked[0]["trusted_origin"] == "http://up"


@table_rows("form", ["url", "b64_json"])
@table_rows(
    "data",
    [
        "",
        "====",
        code(LONG)[:-1],
        code(PNG) + "=",
        "x" + code(LONG),
        code(LONG[:-1]) + code(LONG),
        code(b"<html>"),
        "é" * 4,
    ],
    ids=["none", "padding", "cut", "too much of it", "shifted", "two in one", "something else", "no ASCII"],
)
def test_what_is_not_a_image_s_base_64_is_given_to_nobody(data: str, form: ImageForm) -> None:
    given, kept, _ = give(Image(data), form)
    assert isinstance(given, ProviderBadResponse)
    assert given.failure_scope == "channel"
    assert kept == []


def test_a_mistake_in_the_last_step_is_found() -> None:
    assert isinstance(give(Image(code(LONG)[:-5] + "*" + code(LONG)[-4:]), "b64_json")[0], ProviderBadResponse)


@table_rows("files", [{}, {"http://up/admin": b"<html>"}], ids=["not to be had", "no image"])
@table_rows("form", ["url", "b64_json"])
def test_what_a_text_names_is_trusted_like_its_caller_and_held_against_nobody(
    form: ImageForm, files: Mapping[str, bytes]
) -> None:
    given, _, asked = give(Image(url="http://up/admin", quoted=True), form, files)
    assert asked[0]["trusted_origin"] is None
    assert isinstance(given, ProviderBadResponse)
    assert (given.failure_scope, given.answered) == ("nobody", True)
