"""Tasks that make pictures: how they are asked after, given up, and what is believed of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.image import Image
from gateway.domain.usage import MAX_IMAGES
from gateway.errors import InvalidRequest, ProviderBadResponse
from gateway.formats.images.task import (
    MAX_INVALID_POLLS,
    MAX_WAIT_S,
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    parse_field,
    parse_image,
    parse_sides,
)
from tests.support.image_calls import image_call, upload
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

PNG = draw()


def test_a_task_is_asked_after_less_and_less_often() -> None:
    task = ImageTask("/tasks", 1.0)
    asks = [task.follow("t-1"), *(task.build_poll_request() for _ in range(4))]
    assert [provider_request.wait_s for provider_request in asks] == [1.0, 1.5, 2.25, MAX_WAIT_S, MAX_WAIT_S]
    assert {
        (provider_request.method, provider_request.path, provider_request.repeatable, provider_request.body)
        for provider_request in asks
    } == {("GET", "/tasks/t-1", True, None)}


def test_the_first_id_counts_whatever_is_said_later() -> None:
    task = ImageTask("/tasks", 1.0)
    task.follow("t-1")
    assert task.follow("t-2").path == "/tasks/t-1"
    assert task.follow(None).path == "/tasks/t-1"


@table_rows("found", [None, 7, "", "a/b", "..", "a?b", "a b", "a%2Fb", "ä", "x" * 129, ["t"], "t\n"])
def test_an_id_that_may_not_stand_in_a_path_is_refused(found: Any) -> None:
    with pytest.raises(ProviderBadResponse, match="no usable id"):
        ImageTask("/tasks", 1.0).follow(found)


def test_a_task_is_cancelled_between_its_beginning_and_its_end() -> None:
    task = ImageTask("/tasks", 1.0)
    assert task.build_cancel_request() is None
    task.follow("t-1")
    provider_request = task.build_cancel_request()
    assert provider_request is not None
    assert (provider_request.method, provider_request.path, provider_request.body, provider_request.repeatable) == (
        "POST",
        "/tasks/t-1/cancel",
        None,
        True,
    )
    task.ended = True
    assert task.build_cancel_request() is None


def test_a_page_of_a_proxys_says_nothing_of_a_task() -> None:
    task = ImageTask("/tasks", 1.0)
    with pytest.raises(ProviderBadResponse):
        task.parse_object(b"<html>")
    task = ImageTask("/tasks", 1.0)
    task.follow("t-1")
    for _ in range(MAX_INVALID_POLLS):
        assert task.parse_object(b"<html>") is None
    assert task.parse_object(b"{}") == {}
    for _ in range(MAX_INVALID_POLLS):
        assert task.parse_object(b"[]") is None
    with pytest.raises(ProviderBadResponse):
        task.parse_object(b"")


@table_rows("url", [None, 1, [], "", "file:///etc/passwd", "ftp://x/y", "https://a b/", "data:text/html,x"])
def test_what_is_no_image_is_refused(url: Any) -> None:
    with pytest.raises(ProviderBadResponse):
        parse_image(url)


def test_fewer_images_than_were_asked_for_are_none() -> None:
    one = Image(url="https://x/1.png")
    with pytest.raises(ProviderBadResponse, match="made 1 of 2"):
        build_images([one], 2)


def test_more_images_than_were_asked_for_are_paid_for() -> None:
    reported = build_images([Image(url=f"https://x/{number}.png") for number in range(3)], 1)
    assert ([item.url for item in reported.items], reported.usage.images) == (["https://x/0.png"], 3)
    assert build_images([Image()] * (MAX_IMAGES + 1), 1).usage.images == MAX_IMAGES


@given(width=st.integers(1, 99_999), height=st.integers(1, 99_999))
def test_a_size_is_width_and_height(width: int, height: int) -> None:
    assert parse_sides(f"{width}x{height}") == (width, height)


@table_rows("size", ["", "1024", "1024*1024", "0x5", "-1x5", "1x1x1", "999999x1", "1024x1024\n", "٣x٣"])
def test_a_size_of_no_such_form_is_refused(size: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_sides(size)
    assert refused.value.param == "size"


@table_rows(
    ("value", "read"),
    [("true", True), ("false", False), ("42", 42), ("-1.5", -1.5), ("4 cats", "4 cats"), ("1e5", "1e5"), ("", ""),
     (True, True), (7, 7), ("9" * 16, "9" * 16), ([1], [1])],
)  # fmt: skip
def test_a_field_of_a_form_is_what_it_reads_as(value: Any, read: Any) -> None:
    found = parse_field(value)
    assert (found, type(found)) == (read, type(read))


@table_rows(
    ("call", "param"),
    [
        (image_call(files=(upload(PNG),)), "model"),
        (image_call(files=(upload(PNG, "mask"),)), "mask"),
        (image_call(background="transparent"), "background"),
        (image_call(frame_count=4), "frame_count"),
        (image_call(svg={}), "svg"),
    ],
)
def test_what_no_task_has_words_for_is_refused_by_name(call: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_expressible(call, takes_image=False, needs_image=False)
    assert refused.value.param == param


def test_an_editor_wants_a_image() -> None:
    with pytest.raises(InvalidRequest, match="only edits"):
        check_expressible(image_call(), takes_image=True, needs_image=True)
    check_expressible(image_call(files=(upload(PNG),)), takes_image=True, needs_image=True)
    check_expressible(image_call(background="opaque", quality="high"), takes_image=False, needs_image=False)


def test_a_format_is_one_that_can_be_had() -> None:
    check_format(None, ())
    check_format("png", ("png",))
    with pytest.raises(InvalidRequest, match="one of webp, png"):
        check_format("gif", ("webp", "png"))
    with pytest.raises(InvalidRequest, match="left to this model"):
        check_format("png", ())
