"""The gate of a stream of pictures: what of a provider's bytes may leave, and what it comes to."""

import base64
import itertools
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.image import MAX_IMAGE_BYTES, Image, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import NO_USAGE, Usage, UsageDetails
from gateway.errors import ImageBlocked, ProviderBadResponse, ProviderError
from gateway.formats.images.openai import ESTIMATED_IMAGE_TOKENS, parse_images_inference
from gateway.formats.images.openai_response import build_completed_stream
from gateway.formats.images.openai_stream import ImagesPassthrough, build_whole
from gateway.formats.stream import JsonOrStream, StreamTransform
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.wire import sse
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

CALL = parse_images_inference({"model": "m", "prompt": "a cat!!!", "stream": True})
TWO = attrs.evolve(CALL, choices=2)
B64 = base64.b64encode(draw()).decode()
DONE = b"data: [DONE]\n\n"
USAGE = {
    "input_tokens": 50,
    "input_tokens_details": {"image_tokens": 40, "text_tokens": 10},
    "output_tokens": 272,
    "total_tokens": 322,
}


def event(kind: str, name: str | None = "", end: bytes = b"\n", **more: Any) -> bytes:
    """An event; ``name`` None: it has none, else it is its type's unless given."""
    head = b"" if name is None else b"event: " + (name or kind).encode() + end
    return head + b"data: " + orjson.dumps({"type": kind, "b64_json": B64, **more}) + end + end


PARTIAL = event("image_generation.partial_image", partial_image_index=0)
COMPLETED = event("image_generation.completed", usage=USAGE)
EDITED = event("image_edit.completed", usage=USAGE)
BLOCK = b'event: error\ndata: {"type":"error","error":{"code":"moderation_blocked","message":"no"}}\n\n'
TROUBLE = b'data: {"error":{"message":"out of s3cret-key memory"}}\n\n'
EVENTS = st.sampled_from(
    [
        PARTIAL,
        COMPLETED,
        EDITED,
        event("image_edit.partial_image", None),
        event("image_generation.completed", None),
        event("image_generation.completed", "image_generation.partial_image", usage=USAGE),
        event("of_tomorrow", prompt='"type": "image_generation.completed"'),
        event("image_generation.completed", end=b"\r\n", usage={"input_tokens": -1}),
        event("image_generation.partial_image", end=b"\r"),
        b'data: {"b64_json": "AA", "type" : "image_edit.partial_image"}\n\n',
        b'data: {"type":\ndata: "image_generation.completed"}\n\n',
        b"data: garbage\n\n",
        b"data: [1]\n\n",
        b"event: image_generation.completed\ndata: null\n\n",
        b": comment\n\n",
        b"event: ping\n\n",
        b"\n",
        DONE,
        BLOCK,
        TROUBLE,
    ]
)
STREAMS = st.builds(
    lambda bom, events, end: bom + b"".join(events) + end,
    st.sampled_from([b"", sse.BOM]),
    st.lists(EVENTS, max_size=6),
    st.sampled_from([b"", b'data: {"type', b"\r", b"data: [DONE]"]),
)
CUTS = st.lists(st.integers(0, 2000), max_size=8)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """``data`` in pieces."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def run(transform: StreamTransform, *pieces: bytes) -> tuple[bytes, ProviderError | None, Usage]:
    """What left, the fault it ended in, and what was used."""
    out = b"".join(map(transform.feed, pieces))
    try:
        out += transform.finish()
    except ProviderError as fault:
        return out, fault, transform.parse_usage()
    return out, None, transform.parse_usage()


@given(STREAMS, CUTS, st.sampled_from([CALL, TWO]))
def test_however_a_stream_is_cut_the_same_leaves(data: bytes, places: list[int], inference: InferenceRequest) -> None:
    def feed(transform: ImagesPassthrough, *pieces: bytes) -> Any:
        out, error, usage = run(transform, *pieces)
        return out, error and (type(error), error.message), usage, transform.events, transform.ended

    whole = feed(ImagesPassthrough(inference), data)
    assert feed(ImagesPassthrough(inference), *cut(data, places)) == whole
    assert whole[0].removesuffix(DONE) in data.removeprefix(sse.BOM)
    assert (whole[1] is None) == whole[0].endswith(DONE) == whole[4]


@table_rows("completed", [COMPLETED, EDITED])
@table_rows("end", [b"", DONE, b": bye\n\n" + PARTIAL])
def test_a_stream_leaves_as_it_lies_up_to_its_last_image_and_ends_in_the_mark(completed: bytes, end: bytes) -> None:
    out, error, usage = run(ImagesPassthrough(CALL), PARTIAL, b": alive\n\n", PARTIAL + completed + end)
    assert (out, error) == (PARTIAL + b": alive\n\n" + PARTIAL + completed + DONE, None)
    assert usage == Usage(50, 272, 0, "upstream", images=1, details=UsageDetails(image_input=40))


def test_a_gate_is_closed_with_the_last_image_and_nothing_leaves_any_more() -> None:
    transform = ImagesPassthrough(TWO)
    assert (transform.feed(COMPLETED), transform.closed) == (COMPLETED, False)
    assert transform.feed(COMPLETED) == COMPLETED + DONE
    assert transform.closed
    assert transform.ended
    assert (transform.events, transform.feed(COMPLETED), transform.finish()) == (2, b"", b"")
    assert transform.parse_usage() == Usage(100, 544, 0, "upstream", images=2, details=UsageDetails(image_input=80))


def test_fewer_images_than_asked_for_are_a_whole_stream() -> None:
    for end in (b"", DONE, b"data: [DONE]"):
        out, error, usage = run(ImagesPassthrough(TWO), COMPLETED, end)
        assert (out, error, usage.images) == (COMPLETED + DONE, None, 1)


@table_rows("stream", [b"", PARTIAL, DONE, PARTIAL + DONE, COMPLETED[:-1], b": comment\n\n", b"data: {"])
def test_a_stream_without_a_image_is_cut_and_costs_nothing(stream: bytes) -> None:
    out, error, usage = run(ImagesPassthrough(CALL), stream)
    assert type(error) is ProviderBadResponse
    assert DONE not in out
    assert usage == NO_USAGE


def test_a_block_in_a_stream_is_one_and_costs_nothing() -> None:
    out, error, usage = run(ImagesPassthrough(CALL), PARTIAL, BLOCK, COMPLETED)
    assert (out, usage) == (PARTIAL, NO_USAGE)
    assert isinstance(error, ImageBlocked)


@table_rows(
    "raw",
    [
        TROUBLE,
        b'event: error\ndata: {"message":"out of s3cret-key memory"}\n\n',
        b'event: image_generation.partial_image\ndata: {"error":{"message":"out of s3cret-key memory"}}\n\n',
        b'data: {"type":"error","message":"out of s3cret-key memory"}\n\n',
    ],
)
def test_an_error_in_a_stream_is_the_providers_and_its_secrets_are_masked(raw: bytes) -> None:
    out, error, _ = run(ImagesPassthrough(CALL, ["s3cret-key"]), PARTIAL, raw)
    assert out == PARTIAL
    assert type(error) is ProviderBadResponse
    assert error.message == "The provider reported an error: out of [masked] memory"


def test_a_caller_who_leaves_with_a_part_of_a_image_pays_an_estimate_of_it() -> None:
    transform = ImagesPassthrough(CALL)
    assert transform.parse_usage() == NO_USAGE
    transform.feed(PARTIAL)
    assert transform.parse_usage() == Usage(estimate_prompt(CALL), ESTIMATED_IMAGE_TOKENS, 0, "estimate", images=1)


def partial(index: int | None) -> bytes:
    """A part of a picture; None: it does not say which."""
    more: dict[str, Any] = {} if index is None else {"partial_image_index": index}
    return event("image_generation.partial_image", **more)


@table_rows(
    ("stream", "completed", "under_way"),
    [
        ([0, 1, 2] * 10, 0, 3),
        ([0, 1, 2] * 2, 0, 2),
        ([0, 0, 1, 1], 0, 2),
        ([0, 0, 1, "done", 1], 1, 1),
        ([0, 1, "done"], 1, 0),
        (["done", 0], 1, 1),
        ([0, "done", 0, "done", 0], 2, 1),
        ([None, None, None], 0, 1),
        ([None, "done", None, None], 1, 1),
        ([12, -1, 0, 1], 0, 1),
    ],
)
def test_a_caller_who_leaves_pays_for_every_image_that_was_begun(
    stream: list[Any], completed: int, under_way: int
) -> None:
    transform = ImagesPassthrough(attrs.evolve(CALL, choices=3))
    transform.feed(b"".join(COMPLETED if step == "done" else partial(step) for step in stream))
    used = transform.parse_usage()
    assert (used.images, used.source) == (completed + under_way, "estimate" if under_way else "upstream")
    assert used.completion_tokens == 272 * completed + ESTIMATED_IMAGE_TOKENS * under_way


def test_a_text_cannot_pretend_to_be_a_part() -> None:
    raw = event("image_generation.partial_image", prompt='x", "partial_image_index": 0, "y":"', partial_image_index=1)
    transform = ImagesPassthrough(attrs.evolve(CALL, choices=3))
    transform.feed(partial(0) + raw)
    assert transform.parse_usage().images == 1


@table_rows("end", [BLOCK, TROUBLE, b"data: {"])
def test_images_that_are_done_are_paid_for_however_the_stream_ends(end: bytes) -> None:
    out, error, usage = run(
        ImagesPassthrough(attrs.evolve(CALL, choices=4)), COMPLETED, PARTIAL, COMPLETED, PARTIAL, end
    )
    assert out == COMPLETED + PARTIAL + COMPLETED + PARTIAL
    assert (error is not None, usage) == (
        True,
        Usage(100, 544, 0, "upstream", images=2, details=UsageDetails(image_input=80)),
    )


@table_rows(("passed", "images"), [(b"", 0), (PARTIAL, 0), (COMPLETED + PARTIAL, 1)])
def test_a_image_under_way_when_its_provider_is_lost_costs_nothing(passed: bytes, images: int) -> None:
    """The reader of the transport passes its failure to the transform."""
    transform = ImagesPassthrough(TWO)
    transform.feed(passed)
    transform.error = ProviderBadResponse("The provider closed the connection", phase="stream")
    assert transform.parse_usage() == (
        Usage(50, 272, 0, "upstream", images=1, details=UsageDetails(image_input=40)) if images else NO_USAGE
    )


def test_a_image_without_a_usage_is_estimated() -> None:
    _, _, usage = run(ImagesPassthrough(CALL), event("image_generation.completed"))
    assert usage == Usage(estimate_prompt(CALL), ESTIMATED_IMAGE_TOKENS, 0, "estimate", images=1)


def test_the_datas_word_is_believed_before_the_names() -> None:
    """Clients go by the data; an event that only calls itself completed ends nothing."""
    out, error, _ = run(ImagesPassthrough(CALL), event("of_tomorrow", "image_generation.completed"))
    assert out == event("of_tomorrow", "image_generation.completed")
    assert error is not None


def test_a_text_cannot_pretend_to_be_a_type() -> None:
    raw = event("of_tomorrow", None, prompt='x", "type": "image_generation.completed"')
    transform = ImagesPassthrough(CALL)
    transform.feed(PARTIAL)
    assert (transform.feed(raw), transform.events, transform.ended) == (raw, 1, False)


def test_an_event_without_an_end_is_a_fault() -> None:
    transform = ImagesPassthrough(CALL)
    piece = b"A" * (1024 * 1024)
    transform.feed(b"event: image_generation.partial_image\ndata: ")
    for _ in range(MAX_IMAGE_BYTES * 4 // 3 // len(piece)):
        assert transform.feed(piece) == b""
    assert (transform.error, transform.closed) == (None, False)
    assert [transform.feed(piece) for _ in range(2)] == [b"", b""]
    assert type(transform.error) is ProviderBadResponse
    assert transform.closed


def test_a_partial_image_is_not_read() -> None:
    """One that is no JSON passes as it lies: nobody has looked."""
    transform = ImagesPassthrough(CALL)
    transform.feed(PARTIAL)
    answer = b'event: image_generation.partial_image\ndata: {"b64_json": "never closed\n\n'
    assert (transform.feed(answer), transform.events) == (answer, 2)


WHOLE = {"created": 5, "data": [{"b64_json": B64}], "quality": "high", "usage": USAGE}


def test_a_whole_answer_to_a_call_for_a_stream_is_told_as_one() -> None:
    transform = JsonOrStream(lambda raw: build_whole(raw, CALL))
    raw = orjson.dumps(WHOLE)
    out, error, usage = run(transform, raw[:9], raw[9:])
    reported = {"created": 5, "quality": "high", "usage": USAGE}
    assert out == build_completed_stream(Images((Image(B64),), usage, reported), CALL, 5)
    assert (error, usage) == (None, Usage(50, 272, 0, "upstream", images=1, details=UsageDetails(image_input=40)))


def test_no_more_of_a_whole_answer_is_told_than_was_asked_for() -> None:
    out, usage = build_whole(orjson.dumps(WHOLE | {"data": [{"b64_json": B64}] * 5}), TWO)
    assert (out.count(b"event: image_generation.completed"), usage.images) == (2, 2)


@table_rows("created", [None, -1, True, 1.5, "5", 2**60])
def test_a_time_that_makes_no_sense_is_not_told(created: object) -> None:
    out, _ = build_whole(orjson.dumps(WHOLE | {"created": created}), CALL)
    assert b'"created_at":0,' in out


def test_what_a_whole_answer_is_told_as_passes_a_gate() -> None:
    out, usage = build_whole(orjson.dumps(WHOLE | {"created": "x"}), CALL)
    assert run(ImagesPassthrough(CALL), out) == (out, None, usage)


@table_rows(
    ("value", "kind"),
    [
        ({"data": [{"url": "https://host/1.png"}]}, ProviderBadResponse),
        ({"data": [{"b64_json": B64}, {"url": "https://host/1.png"}]}, ProviderBadResponse),
        ({"data": [{"b64_json": base64.b64encode(b"GIF? no, a text").decode()}]}, ProviderBadResponse),
        ({"data": [{"b64_json": B64 + "?"}]}, ProviderBadResponse),
        ({"data": []}, ProviderBadResponse),
        ({"error": {"code": "moderation_blocked"}}, ImageBlocked),
    ],
)
def test_an_answer_that_cannot_be_told_is_a_fault(value: object, kind: type[ProviderError]) -> None:
    with pytest.raises(kind):
        build_whole(orjson.dumps(value), TWO)
