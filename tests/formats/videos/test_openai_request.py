"""Calls for videos: what is read of them, in JSON and as a form, and which field is named where one is wrong."""

import base64
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.upload import Upload
from gateway.domain.usage import Usage
from gateway.domain.video import MAX_PROMPT_CHARS, MAX_SECONDS, Reference, VideoRequest
from gateway.errors import InvalidRequest
from gateway.formats.videos.openai_request import (
    parse_remix_form,
    parse_remix_inference,
    parse_videos_form,
    parse_videos_inference,
)
from gateway.formats.wire.form import ReceivedForm
from tests.support.corrupt_json import spoilt
from tests.support.image_calls import upload as put
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

ASK = {"model": "m", "prompt": "a cat"}
PNG = draw()
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
URL = "https://host/a/1.png?x=1&y=%20"
FULL = ASK | {
    "seconds": "8", "size": "1280x720", "input_reference": {"image_url": URL}, "webhook_url": "https://hooks/1",
    "seed": 7, "negative_prompt": "dogs", "metadata": {"a": "b"}, "user": "u",
}  # fmt: skip


def upload(data: bytes = PNG, field: str = "input_reference") -> Upload:
    return put(data, field)


def form(*files: Upload, **fields: str) -> ReceivedForm:
    return ReceivedForm(tuple({**ASK, **fields}.items()), files)


def see(inference: InferenceRequest) -> VideoRequest:
    assert inference.video is not None
    return inference.video


def refuse(read: Any, asked: Any) -> InvalidRequest:
    """The fault that ``read`` finds."""
    with pytest.raises(InvalidRequest) as caught:
        read(asked)
    return caught.value


# ---- what is asked for


def test_a_call_says_what_every_provider_must_know_and_keeps_the_rest() -> None:
    inference = parse_videos_inference(dict(FULL))
    assert (inference.operation, inference.model, inference.stream, inference.files) == ("videos", "m", False, ())
    video_request = see(inference)
    assert (video_request.prompt, video_request.seconds, video_request.size, video_request.webhook_url) == (
        "a cat",
        8,
        "1280x720",
        "https://hooks/1",
    )
    assert video_request.reference is not None
    assert (video_request.reference.url, video_request.reference.upload, video_request.remix_of) == (URL, None, None)
    assert inference.body == {"seed": 7, "negative_prompt": "dogs", "metadata": {"a": "b"}, "user": "u"}
    assert (inference.prompt_chars, inference.max_prompt_tokens) == (5, 5)
    assert inference.need == Usage(5)


def test_a_form_says_the_same() -> None:
    fields = {
        "seconds": "8", "size": "1280x720", "webhook_url": "https://hooks/1", "seed": "7", "negative_prompt": "dogs",
    }  # fmt: skip
    inference = parse_videos_form(form(**fields, **{"input_reference[image_url]": URL}))
    other = parse_videos_inference(dict(FULL))
    assert attrs.evolve(see(inference), reference=None) == attrs.evolve(see(other), reference=None)
    assert (see(inference).reference or Reference()).url == URL
    assert inference.body == {"seed": "7", "negative_prompt": "dogs"}


@table_rows(
    "more",
    [
        {},
        {"seconds": None, "size": None, "input_reference": None, "webhook_url": None},
        {"seconds": "", "size": "", "input_reference": "", "webhook_url": ""},
        {"size": "auto", "duration": None, "width": ""},
    ],
)
def test_a_call_that_says_little_leaves_it_open(more: dict[str, Any]) -> None:
    assert see(parse_videos_inference(ASK | more)) == VideoRequest("a cat")
    assert see(parse_videos_form(form(**{name: "" if value is None else value for name, value in more.items()}))) == (
        VideoRequest("a cat")
    )


@table_rows(("answer", "meant"), [("4", 4), (4, 4), ("12", 12), (MAX_SECONDS, MAX_SECONDS), ("1", 1)])
def test_seconds_are_a_text_or_a_number(answer: object, meant: int) -> None:
    assert see(parse_videos_inference(ASK | {"seconds": answer})).seconds == meant
    assert see(parse_videos_form(form(seconds=str(answer)))).seconds == meant


def test_a_prompt_is_bounded_by_its_bytes() -> None:
    inference = parse_videos_inference(ASK | {"prompt": "猫猫"})
    assert (inference.prompt_chars, inference.max_prompt_tokens) == (2, 6)
    assert parse_videos_inference(ASK | {"prompt": "x" * MAX_PROMPT_CHARS}).prompt_chars == MAX_PROMPT_CHARS


# ---- a picture to start from


@table_rows(
    "reported",
    [URL, {"image_url": URL}, {"image_url": {"url": URL}}, {"image_url": URL, "file_id": None}, DATA,
     {"image_url": DATA}],
)  # fmt: skip
def test_a_image_is_an_address_or_a_data_url_alone_or_in_an_object(reported: Any) -> None:
    reference = see(parse_videos_inference(ASK | {"input_reference": reported})).reference
    assert reference is not None
    assert reference.url in {URL, DATA}
    assert reference.is_remote is (reference.url == URL)


@table_rows("field", ["input_reference", "input_reference[image_url]"])
@table_rows("message", [URL, DATA])
def test_a_form_has_it_as_the_client_libraries_write_it(field: str, message: str) -> None:
    inference = parse_videos_form(form(**{field: message, "input_reference[file_id]": ""}))
    assert (see(inference).reference or Reference()).url == message
    assert inference.body == {}


@table_rows("data", [PNG, b"\xff\xd8\xff\xe0 jpeg", b"RIFF\0\0\0\0WEBP"])
def test_a_form_has_it_as_a_file(data: bytes) -> None:
    file = upload(data)
    inference = parse_videos_form(form(file))
    assert inference.files == (file,)
    assert (see(inference).reference or Reference()).upload is file


@table_rows(
    ("reported", "place"),
    [
        (7, ""), ([], ""), (True, ""), ({}, ".image_url"), ({"image_url": 7}, ".image_url"),
        ({"image_url": {}}, ".image_url.url"), ({"image_url": "cat.png"}, ".image_url"), ({"file_id": "f"}, ".file_id"),
        ({"file_id": "f", "image_url": URL}, ".file_id"),
    ],
)  # fmt: skip
def test_an_object_without_a_image_says_where_it_should_be(reported: Any, place: str) -> None:
    assert refuse(parse_videos_inference, ASK | {"input_reference": reported}).param == f"input_reference{place}"


@table_rows(
    "message",
    [
        "cat.png", "ftp://host/1.png", "file:///etc/passwd", "https://", "https://ho st/1", "https://host/\n",
        "https://host/ü", 'https://host/"', "https://h\\@x/", f"https://host/{'x' * 8_190}", "HTTPS://host/1.png",
        "data:image/png;base64,", "data:image/png,raw", "data:text/html;base64,PGI+",
        "data:image/svg+xml;base64,PHN2Zz4=", "data:image/png;base64,!!!!", "data:image/png;base64,AAAA",
        "data:image/gif;base64,R0lGODlh",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_named(message: str) -> None:
    assert refuse(parse_videos_inference, ASK | {"input_reference": message}).param == "input_reference"
    for field in ("input_reference", "input_reference[image_url]"):
        assert refuse(parse_videos_form, form(**{field: message})).param == field


@table_rows(
    ("asked", "param"),
    [
        (form(upload(), upload()), "input_reference"),
        (form(upload(), input_reference=URL), "input_reference"),
        (form(upload(), **{"input_reference[image_url]": URL}), "input_reference"),
        (form(input_reference=URL, **{"input_reference[image_url]": URL}), "input_reference"),
        (form(upload(), **{"input_reference[file_id]": "f"}), "input_reference"),
        (form(**{"input_reference[file_id]": "f"}), "input_reference[file_id]"),
        (form(upload(b"")), "input_reference"),
        (form(upload(b"%PDF-1.7")), "input_reference"),
        (form(upload(b"GIF89a")), "input_reference"),
        (form(upload(b"<svg xmlns='x'/>")), "input_reference"),
        (form(upload(field="image")), "image"),
        (form(upload(field="prompt")), "prompt"),
    ],
)
def test_a_file_that_is_not_taken_is_named(asked: ReceivedForm, param: str) -> None:
    assert refuse(parse_videos_form, asked).param == param


# ---- what is wrong


@table_rows(
    ("name", "value"),
    [
        ("model", None), ("model", ""), ("model", 1), ("model", "x" * 257), ("prompt", None), ("prompt", ""),
        ("prompt", " \n"), ("prompt", ["a"]), ("prompt", "x" * (MAX_PROMPT_CHARS + 1)), ("seconds", 0),
        ("seconds", "0"), ("seconds", -4), ("seconds", "-4"), ("seconds", "4.5"), ("seconds", 4.0), ("seconds", True),
        ("seconds", "04"), ("seconds", " 4"), ("seconds", "4s"), ("seconds", "\u0664"), ("seconds", []),
        ("seconds", MAX_SECONDS + 1), ("seconds", "99999999999"), ("size", "large"), ("size", "720p"),
        ("size", "1280"), ("size", "1280x"), ("size", "0x720"), ("size", "1280X720"), ("size", "1280x720\n"),
        ("size", "1280x720x3"), ("size", "\uff11280x720"), ("size", 720), ("size", ["1280x720"]), ("size", "123456x1"),
        ("webhook_url", 5), ("webhook_url", ["https://hooks/1"]),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(name: str, value: object) -> None:
    body = {key: one for key, one in (ASK | {name: value}).items() if one is not None}
    assert refuse(parse_videos_inference, body).param == name
    if value is None or isinstance(value, str):
        fields = tuple((key, str(one)) for key, one in body.items())
        assert refuse(parse_videos_form, ReceivedForm(fields)).param == name


@table_rows(
    ("name", "value"),
    [
        ("duration", 60), ("durationSeconds", "8"), ("duration_seconds", 8), ("num_frames", 9_999), ("fps", 60),
        ("resolution", "4k"), ("width", 4096), ("HEIGHT", "1"), ("aspect_ratio", "1:1"), ("aspectRatio", "1:1"),
        ("Ratio", "1:1"), ("video_size", "x"), ("n", 4), ("num-videos", 4), ("numberOfVideos", 4), ("sampleCount", 0),
        ("video_count", False), ("length", 8),
    ],
)  # fmt: skip
def test_what_vendors_call_the_same_is_refused_by_name(name: str, value: object) -> None:
    assert refuse(parse_videos_inference, ASK | {name: value}).param == name
    error = refuse(parse_videos_form, form(**{name: str(value)}))
    assert error.param == name
    assert "'seconds' and 'size'" in error.message
    assert refuse(parse_videos_form, form(**{f"{name}[]": str(value)})).param == name


@table_rows(
    ("name", "spelled"),
    [
        ("Seconds", "seconds"), ("SIZE", "size"), ("Prompt", "prompt"), ("inputReference", "input_reference"),
        ("Input-Reference", "input_reference"), ("webhookUrl", "webhook_url"), ("Model", "model"),
    ],
)  # fmt: skip
def test_the_conventions_own_fields_are_spelled_as_it_spells_them(name: str, spelled: str) -> None:
    for read, asked in ((parse_videos_inference, ASK | {name: "8"}), (parse_videos_form, form(**{name: "8"}))):
        error = refuse(read, asked)
        assert error.param == name
        assert f"'{spelled}'" in error.message


def test_a_field_twice_in_a_form_is_said_to_be() -> None:
    twice = ReceivedForm((*form(seconds="4").fields, ("seconds[]", "12")))
    assert refuse(parse_videos_form, twice).param == "seconds"


def test_a_name_as_long_as_a_letter_is_not_repeated_whole() -> None:
    error = refuse(parse_videos_inference, ASK | {"Prompt" + "_" * 10_000: "x"})
    assert len(error.param or "") == 64
    assert len(error.message) < 200


# ---- remixes


def test_a_remix_is_a_prompt_alone() -> None:
    for inference in (
        parse_remix_inference({"prompt": "at night", "webhook_url": "https://hooks/1", "model": None}),
        parse_remix_form(ReceivedForm((("prompt", "at night"), ("webhook_url", "https://hooks/1"), ("model", "")))),
    ):
        assert (inference.operation, inference.model) == ("video_remixes", "")
        assert see(inference) == VideoRequest("at night", webhook_url="https://hooks/1")
        assert (inference.prompt_chars, inference.max_prompt_tokens) == (8, 8)


@table_rows(
    ("body", "param"),
    [
        ({}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": 1}, "prompt"),
        ({"prompt": "x" * (MAX_PROMPT_CHARS + 1)}, "prompt"), ({"prompt": "x", "seconds": "12"}, "seconds"),
        ({"prompt": "x", "size": "1x1"}, "size"), ({"prompt": "x", "model": "m"}, "model"),
        ({"prompt": "x", "n": 0}, "n"), ({"prompt": "x", "Prompt": "y"}, "Prompt"),
        ({"prompt": "x", "a" * 99: 1}, "a" * 64),
        ({"prompt": "x", "webhook_url": 7}, "webhook_url"),
    ],
)  # fmt: skip
def test_a_wrong_remix_names_the_field(body: dict[str, Any], param: str) -> None:
    assert refuse(parse_remix_inference, body).param == param
    if all(isinstance(value, str) for value in body.values()):
        assert refuse(parse_remix_form, ReceivedForm(tuple(body.items()))).param == param


def test_a_remix_takes_no_file() -> None:
    assert refuse(parse_remix_form, ReceivedForm((("prompt", "x"),), (upload(),))).param == "input_reference"


# ---- garbage


def check_fault(read: Any, asked: Any) -> None:
    """A call, or the caller's mistake with a name."""
    call = error = None
    try:
        call = read(asked)
    except InvalidRequest as refused:
        error = refused
    if call is None:
        assert error is not None
        assert error.param is not None
        return
    assert see(call).prompt.strip()
    assert (see(call).seconds or 1) in range(1, MAX_SECONDS + 1)


@given(spoilt(FULL))
def test_garbage_in_a_call_is_the_callers_mistake(body: Any) -> None:
    if isinstance(body, dict):
        check_fault(parse_videos_inference, body)
        check_fault(parse_remix_inference, {"prompt": body.get("prompt")} | body)


_NAMES = st.sampled_from([*FULL, "input_reference[image_url]", "input_reference[file_id]", "seconds[]", "SIZE", ""])


@given(st.lists(st.tuples(_NAMES | st.text(max_size=4), st.text(max_size=6)), max_size=5))
def test_garbage_in_a_form_is_the_callers_mistake(fields: list[tuple[str, str]]) -> None:
    for read in (parse_videos_form, parse_remix_form):
        check_fault(read, ReceivedForm((*ASK.items(), *fields)))
        check_fault(read, ReceivedForm(tuple(fields), (upload(),)))
