"""Which filmmaker speaks which language: every one there is, and all of them in the same way."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.api_format import WIRES
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.video import Reference, VideoRequest
from gateway.errors import InvalidRequest, ProviderError
from gateway.formats.image_backend import ProviderCall
from gateway.formats.request_body import Form, build_payload
from gateway.formats.video_backend import MAX_ID_CHARS, ContentLocation, ProviderTask, VideoBackend, VideoSpec
from gateway.formats.video_backends import VIDEO_BACKENDS
from gateway.providers.base import Endpoint, Provider
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import Way
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw

EVERY = pytest.mark.parametrize("wire", VIDEO_BACKENDS)
ENDPOINTS = [
    (provider, endpoint)
    for provider in PROVIDERS.values()
    for endpoint in provider.endpoints
    if endpoint.wire in VIDEO_BACKENDS
]
TASK = ProviderTask("task-1", "m", "https://files.example/1.mp4")
IMAGE = Reference(upload(draw(), "input_reference"))
CODED = base64.b64encode(draw()).decode()
REQUIRED_IMAGE = ("i2v", "gen4_turbo", "I2V", "2.3-Fast")
"""Models that make nothing without one, by what is in their names."""


def name_model(able: Capability) -> str:
    """A model that the glob stands for."""
    return able.name.replace("*", "")


def list_described() -> list[Any]:
    """Every model that anything is known of, with whose it is."""
    return [
        pytest.param(provider, endpoint, able, id=f"{provider.slug}-{able.name}")
        for provider, endpoint in ENDPOINTS
        for able in provider.capabilities
        if able.seconds and able.name != "*"
    ]


def test_every_language_of_videos_has_one_and_every_one_has_a_vendor() -> None:
    assert tuple(VIDEO_BACKENDS) == WIRES["videos"] == WIRES["video_remixes"]
    assert {endpoint.wire for _, endpoint in ENDPOINTS} == set(VIDEO_BACKENDS)
    with pytest.raises(TypeError):
        VIDEO_BACKENDS["x"] = VIDEO_BACKENDS["openai_videos"]  # type: ignore[index]


@pytest.mark.parametrize(("provider", "endpoint"), ENDPOINTS, ids=lambda one: getattr(one, "slug", ""))
def test_where_there_is_a_video_endpoint_it_is_said_whether_videos_can_be_remixed(
    provider: Provider, endpoint: Endpoint
) -> None:
    """Only the convention has remixes: everywhere else a caller hears so before anything is held."""
    remixes = {able.remixes for able in provider.capabilities if able.seconds}
    if endpoint.wire == "openai_videos":
        assert remixes <= {True}
    else:
        assert remixes == {False}
        assert VIDEO_BACKENDS[endpoint.wire].remix(TASK, VideoSpec("m", "x", "mark")) is None


@pytest.mark.parametrize(("provider", "endpoint", "able"), list_described())
def test_what_a_model_makes_when_nobody_says_can_be_said_to_it(
    provider: Provider, endpoint: Endpoint, able: Capability
) -> None:
    """What is held and charged for is what is asked for; else the provider would decide, at the gateway's cost."""
    maker, model = VIDEO_BACKENDS[endpoint.wire], name_model(able)
    assert provider.find_endpoint((endpoint.wire,), model) is endpoint
    ask = able.fill(VideoRequest("a cat"))
    assert ask.seconds is not None
    needed = able.references and any(word in model for word in REQUIRED_IMAGE)
    shot = VideoSpec(model, "a cat", "mark", ask.seconds, ask.size, IMAGE if needed else None)
    said = maker.submit(shot)
    assert said.begins
    body, _ = build_payload(said.body or {}, "mark")
    assert body


@pytest.mark.parametrize(("provider", "endpoint", "able"), list_described())
def test_every_length_and_every_size_of_a_model_can_be_said_to_it_somehow(
    provider: Provider, endpoint: Endpoint, able: Capability
) -> None:
    """Not every length goes with every size, but none is listed that goes with nothing."""
    maker, model = VIDEO_BACKENDS[endpoint.wire], name_model(able)
    image = IMAGE if able.references else None

    def can_be_said(seconds: int, size: str | None) -> bool:
        try:
            maker.submit(VideoSpec(model, "a cat", "mark", seconds, size, image))
        except InvalidRequest as refused:
            assert refused.param in {"seconds", "size"}, refused.message  # noqa: PT017 - one of many
            return False
        return True

    sizes, lengths = able.sizes or (None,), able.seconds or ()
    assert [size for size in sizes if not any(can_be_said(seconds, size) for seconds in lengths)] == []
    assert [seconds for seconds in lengths if not any(can_be_said(seconds, size) for size in sizes)] == []


@pytest.mark.parametrize(("provider", "endpoint", "able"), list_described())
def test_a_model_that_starts_from_a_image_takes_it_in_every_form(
    provider: Provider, endpoint: Endpoint, able: Capability
) -> None:
    """A file, a data: URL, and an address where its vendor fetches it; else the gateway makes a data: URL of that."""
    maker, ask = VIDEO_BACKENDS[endpoint.wire], able.fill(VideoRequest("a cat"))
    if not able.references:
        return

    def say(reference: Reference) -> Any:
        said = maker.submit(VideoSpec(name_model(able), "a cat", "mark", ask.seconds, ask.size, reference)).body
        assert said is not None
        return said

    said = say(IMAGE)
    if isinstance(said, Form):
        assert [file for _, file in said.files] == [IMAGE.upload]
    else:
        assert CODED in repr(read_sent(ProviderCall(said)))
    assert CODED in repr(say(Reference(url=f"data:image/png;base64,{CODED}")))
    if maker.takes_urls:
        assert "https://host/1.png" in repr(say(Reference(url="https://host/1.png")))


@EVERY
def test_after_the_submit_every_request_passes_and_names_the_task_in_one_place(wire: str) -> None:
    maker = VIDEO_BACKENDS[wire]
    asks = [maker.poll(TASK), maker.cancel(TASK), maker.delete(TASK), maker.find_content(TASK, "video")]
    for ask in asks:
        if isinstance(ask, ProviderCall):
            assert ask.passing
            assert not ask.begins
            assert ask.path is not None
    poll = maker.poll(TASK)
    assert (poll.method, poll.body) == ("GET", None)
    assert "task-1" in (poll.path or "")


@EVERY
@pytest.mark.parametrize("task_id", ["a:b=c~d.e", "x" * MAX_ID_CHARS, "../../v1/keys", "a?b=c&d#e", "a b\r\nX: y"])
def test_an_id_cannot_lead_a_request_elsewhere(wire: str, task_id: str) -> None:
    maker, task = VIDEO_BACKENDS[wire], ProviderTask(task_id, "models/x", None)
    provider, endpoint = next(one for one in ENDPOINTS if one[1].wire == wire)
    way = Way(Channel("up", provider.slug, "https://host/base"), endpoint, "models/x", "key", "mark")
    for ask in (maker.poll(task), maker.cancel(task), maker.delete(task)):
        if ask is None:
            continue
        url = way.plan(ask, 1_700_000_000).url
        assert url.startswith("https://host/")
        path, _, query = url.removeprefix("https://host/").partition("?")
        assert ".." not in path.split("/")
        assert not set(" \r\n#") & set(url)
        assert "b=c&d" not in query or task_id not in url


@EVERY
def test_a_video_backend_remembers_nothing(wire: str) -> None:
    maker = VIDEO_BACKENDS[wire]
    assert not getattr(maker, "__dict__", None)
    assert type(maker)().poll(TASK).path == maker.poll(TASK).path


def check_reading(maker: VideoBackend, raw: bytes) -> None:
    assert isinstance(maker.parse_refused(400, raw, ()), ProviderError)
    for read in (maker.parse_submitted, maker.parse_polled, maker.read_content):
        try:
            told = read(raw, ())
        except ProviderError:
            continue
        assert not isinstance(told, ContentLocation) or told.url or told.path


_WORDS = st.sampled_from(["id", "task_id", "status", "task_status", "code", "error", "data", "output", "done", "name"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**53) | st.text(max_size=4) | st.sampled_from(["failed", "succeed"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(_WORDS, _VALUES, max_size=5))
@settings(max_examples=40)
def test_words_that_many_use_in_places_where_nobody_does_are_a_fault_or_no_matter(value: dict[str, Any]) -> None:
    for maker in VIDEO_BACKENDS.values():
        check_reading(maker, orjson.dumps(value))


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe", b"[" * 20_000, b"null", b'{"a":', b"<html></html>", b"1e999"])
@EVERY
def test_what_is_no_answer_is_a_fault(wire: str, raw: bytes) -> None:
    maker = VIDEO_BACKENDS[wire]
    for read in (maker.parse_submitted, maker.parse_polled):
        with pytest.raises(ProviderError):
            read(raw, ())
    check_reading(maker, raw)
