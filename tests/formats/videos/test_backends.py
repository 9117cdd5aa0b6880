"""The contract of all video backends. The cases of each API format are in ``<format>.json``.

A table has these fields; ``answer`` is JSON, or ``{"$": name, "a.b": value}``: a recorded answer with other values.

    source          the provider's documentation, from which the answers are
    model, task     the model of a case that names none, and a task's id
    requests        [model, task id, {request: method and address}]; ``headers``: among those of a submit
    serves, rejects models that the provider has in this format, and models that it does not
    answers         recorded answers
    submit          [spec, path, body]; ``{png}`` stands for an image in base64, ``file`` for an upload of it
    refused         [spec, field that the ``InvalidRequest`` names]
    submitted, polled, parse_content_location     [answer, what is parsed, or the name of the error]
    content         [[task id, model, clue], variant, location, or request, or null]
    refusals        [HTTP status, answer, name of the error, its message]
"""

import base64
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.domain.capability import Capability
from gateway.domain.channel import Channel
from gateway.domain.operation import OPERATIONS
from gateway.domain.video import Reference, VideoRequest
from gateway.errors import InvalidRequest, ProviderBadResponse, ProviderError, ProviderRateLimited, ProviderRejected
from gateway.formats.images.backend import ProviderRequest
from gateway.formats.videos import dashscope as dashscope_videos
from gateway.formats.videos import fal as fal_videos
from gateway.formats.videos import kling as kling_videos
from gateway.formats.videos import luma as luma_videos
from gateway.formats.videos import minimax as minimax_videos
from gateway.formats.videos import runway as runway_videos
from gateway.formats.videos import volcengine as volcengine_videos
from gateway.formats.videos.backend import (
    MAX_ID_CHARS,
    ContentLocation,
    ProviderTask,
    TaskStatus,
    VideoBackend,
    VideoSpec,
)
from gateway.formats.videos.backends import VIDEO_BACKENDS
from gateway.formats.wire.request_body import Form, build_payload
from gateway.providers.base import Endpoint, Provider
from gateway.providers.registry import PROVIDERS
from gateway.routing.target import ProviderAccess
from tests.support.corrupt_json import spoilt
from tests.support.format_tables import build_answer, list_cases
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw
from tests.support.table_rows import table_rows

TABLES = {wire: orjson.loads((Path(__file__).parent / f"{wire}.json").read_bytes()) for wire in VIDEO_BACKENDS}
MODELS: Mapping[str, Any] = {
    "dashscope_videos": dashscope_videos.MODELS,
    "kling_videos": kling_videos.MODELS,
    "minimax_videos": minimax_videos.MODELS,
    "runway_videos": runway_videos.MODELS,
    "volcengine_videos": volcengine_videos.MODELS,
    "luma_videos": luma_videos.MODELS,
    "fal_videos": fal_videos.MODELS,
}
EVERY = pytest.mark.parametrize("wire", VIDEO_BACKENDS)
ENDPOINTS = [
    (provider, endpoint)
    for provider in PROVIDERS.values()
    for endpoint in provider.endpoints
    if endpoint.wire in VIDEO_BACKENDS
]
OWNERS: Mapping[str, Provider] = dict(
    [(one.wire, owner) for owner, one in ENDPOINTS] + [("openai_videos", PROVIDERS["openai"])]
)
TASK = ProviderTask("task-1", "m", "https://files.example/1.mp4")
IMAGE = Reference(upload(draw(), "input_reference"))
CODED = base64.b64encode(draw()).decode()
SECRET = "hush-hush-hush"
REQUIRED_IMAGE = ("i2v", "gen4_turbo", "I2V", "2.3-Fast")
"""Parts of the names of models that need an image."""
ONE_LENGTH_WITH_SIZE = {"gemini_videos", "minimax_videos", "vertex_videos"}
"""API formats whose larger videos have one length only."""


def build_spec(wire: str, fields: dict[str, Any]) -> VideoSpec:
    fields = {"model": TABLES[wire]["model"], "prompt": "a cat", "mark": "video_1", **fields}
    reference = fields.pop("reference", None)
    if reference is not None:
        fields["reference"] = IMAGE if reference == "file" else Reference(url=reference.replace("{png}", CODED))
    return VideoSpec(**fields)


def describe(found: TaskStatus | ContentLocation | ProviderRequest | None) -> Any:
    """Return what a table says of it."""
    if isinstance(found, ProviderRequest):
        assert found.repeatable
        return f"{found.method} {found.path}"
    if found is None:
        return None
    reported = {
        name: value
        for name, value in attrs.asdict(found, recurse=False).items()
        if value is not None and value is not False
    }
    if isinstance(found, TaskStatus) and found.error is not None:
        reported["error"] = [found.error.code, found.error.message]
    return reported


def check_parsed(wire: str, read: Any, row: Any) -> None:
    """What is parsed of an answer, or its error, is the table's, and neither has the secret or an address in it."""
    answer, expected = row
    if isinstance(expected, str) and hasattr(errors, expected):
        with pytest.raises(ProviderError) as raised:
            read(build_answer(TABLES[wire], answer), (SECRET,))
        assert type(raised.value) is getattr(errors, expected)
        assert "hush" not in raised.value.message
        assert "internal.example" not in raised.value.message
        assert not isinstance(raised.value, ProviderRejected) or 400 <= raised.value.status < 500
    else:
        found = read(build_answer(TABLES[wire], answer), (SECRET,))
        assert (found.url if isinstance(expected, str) else describe(found)) == expected


def name_model(able: Capability) -> str:
    """Return a model that the glob matches."""
    return able.name.replace("wan*", "wanx").replace("*", "")


def list_described() -> list[Any]:
    """Return every model of which the lengths are known, with its provider."""
    return [
        pytest.param(provider, endpoint, able, id=f"{provider.slug}-{able.name}")
        for provider, endpoint in ENDPOINTS
        for able in provider.capabilities
        if able.seconds and able.name != "*"
    ]


# ---- formats and providers


def test_every_video_format_has_a_backend_and_a_provider() -> None:
    assert tuple(VIDEO_BACKENDS) == OPERATIONS["videos"].formats == OPERATIONS["video_remixes"].formats
    assert {endpoint.wire for _, endpoint in ENDPOINTS} == set(VIDEO_BACKENDS)


@EVERY
def test_find_endpoint_returns_the_format_for_its_models_only(wire: str) -> None:
    for model in TABLES[wire]["serves"]:
        endpoint = OWNERS[wire].find_endpoint(OPERATIONS["videos"].formats, model)
        assert endpoint is not None
        assert endpoint.wire == wire
    for model in TABLES[wire].get("rejects", ()):
        assert OWNERS[wire].find_endpoint(OPERATIONS["videos"].formats, model) is None


@table_rows(("wire", "glob"), [(wire, glob) for wire, models in MODELS.items() for glob in models])
def test_every_model_of_a_backend_has_a_capability(wire: str, glob: str) -> None:
    able = OWNERS[wire].find_capability(glob.replace("wan*", "wanx").replace("*", ""))
    assert able is not None
    assert able.name == glob
    assert able.seconds


def test_sizes_of_minimax_h3_are_even_and_of_their_shape() -> None:
    for size, (_, ratio) in minimax_videos.MODELS["MiniMax-H3"].sizes.items():
        width, height = map(int, size.split("x"))
        across, down = map(int, ratio.split(":"))
        assert width % 2 == height % 2 == 0
        assert abs(width / height - across / down) < 0.01


@table_rows(("provider", "endpoint"), ENDPOINTS, ids=lambda one: getattr(one, "slug", ""))
def test_capabilities_say_whether_videos_can_be_remixed(provider: Provider, endpoint: Endpoint) -> None:
    """Only the OpenAI API format has remixes: elsewhere a client is refused before anything is reserved."""
    remixes = {able.remixes for able in provider.capabilities if able.seconds}
    if endpoint.wire == "openai_videos":
        assert remixes <= {True}
    else:
        assert remixes == {False}
        assert VIDEO_BACKENDS[endpoint.wire].remix(TASK, VideoSpec("m", "x", "mark")) is None


# ---- submit


@list_cases(TABLES, "submit")
def test_submit_builds_the_providers_request(wire: str, row: Any) -> None:
    spec, path, body = row
    provider_request = VIDEO_BACKENDS[wire].submit(build_spec(wire, spec))
    assert (
        provider_request.method,
        provider_request.path,
        provider_request.starts_task,
        provider_request.repeatable,
    ) == ("POST", path, True, False)
    assert read_sent(provider_request) == orjson.loads(orjson.dumps(body).replace(b"{png}", CODED.encode()))


@list_cases(TABLES, "refused")
def test_submit_names_a_field_that_is_not_supported(wire: str, row: Any) -> None:
    spec, param = row
    with pytest.raises(InvalidRequest) as refused:
        VIDEO_BACKENDS[wire].submit(build_spec(wire, spec))
    assert refused.value.param == param


@table_rows(("provider", "endpoint", "able"), list_described())
def test_submit_sends_the_default_length_of_a_model(provider: Provider, endpoint: Endpoint, able: Capability) -> None:
    """The gateway reserves and charges for what it asks for; otherwise the provider would decide."""
    backend, model = VIDEO_BACKENDS[endpoint.wire], name_model(able)
    assert provider.find_endpoint((endpoint.wire,), model) is endpoint
    video_request = able.fill(VideoRequest("a cat"))
    assert video_request.seconds is not None
    needed = able.references and any(word in model for word in REQUIRED_IMAGE)
    provider_request = backend.submit(
        VideoSpec(model, "a cat", "mark", video_request.seconds, video_request.size, IMAGE if needed else None)
    )
    assert provider_request.starts_task
    body, _ = build_payload(provider_request.body or {}, "mark")
    assert body


@table_rows(("provider", "endpoint", "able"), list_described())
def test_submit_takes_every_length_and_size_of_a_model(
    provider: Provider, endpoint: Endpoint, able: Capability
) -> None:
    """In some formats not every length goes with every size, but none is listed that goes with nothing."""
    backend, model = VIDEO_BACKENDS[endpoint.wire], name_model(able)
    sizes, lengths = able.sizes or (None,), able.seconds or ()

    def is_taken(seconds: int, size: str | None) -> bool:
        spec = VideoSpec(model, "a cat", "mark", seconds, size, IMAGE if able.references else None)
        try:
            sent = backend.submit(spec).body
        except InvalidRequest as refused:
            assert refused.param in {"seconds", "size"}, refused.message  # noqa: PT017 - one of many
            return False
        plain = sent.fields if isinstance(sent, Form) else sent
        assert len(lengths) == 1 or {str(seconds), f"{seconds}s"} & set(list_leaves(plain)), "the length is sent"
        return True

    if endpoint.wire not in ONE_LENGTH_WITH_SIZE:
        assert all(is_taken(seconds, size) for size in sizes for seconds in lengths)
    assert all(is_taken(lengths[0], size) for size in sizes)
    assert all(is_taken(seconds, sizes[0]) for seconds in lengths)


def list_leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from list_leaves(inner)
    else:
        yield str(value)


@table_rows(("provider", "endpoint", "able"), list_described())
def test_submit_takes_an_image_in_every_form(provider: Provider, endpoint: Endpoint, able: Capability) -> None:
    """A file, a data: URL, and an address if its provider fetches it; else the gateway makes a data: URL of that."""
    backend, video_request = VIDEO_BACKENDS[endpoint.wire], able.fill(VideoRequest("a cat"))
    if not able.references:
        return

    def build_body(reference: Reference) -> Any:
        body = backend.submit(
            VideoSpec(name_model(able), "a cat", "mark", video_request.seconds, video_request.size, reference)
        ).body
        assert body is not None
        return body

    body = build_body(IMAGE)
    if isinstance(body, Form):
        assert [file for _, file in body.files] == [IMAGE.upload]
    else:
        assert CODED in repr(read_sent(ProviderRequest(body)))
    assert CODED in repr(build_body(Reference(url=f"data:image/png;base64,{CODED}")))
    if backend.takes_urls:
        assert "https://host/1.png" in repr(build_body(Reference(url="https://host/1.png")))


# ---- requests about a task


@list_cases(TABLES, "requests")
def test_requests_go_to_the_providers_addresses(wire: str, row: Any) -> None:
    model, task_id, addresses = row
    backend, provider, task = VIDEO_BACKENDS[wire], OWNERS[wire], ProviderTask(task_id, model)
    endpoint = next(one for one in provider.endpoints if one.wire == wire)
    access = ProviderAccess(Channel("up", provider.slug, provider.base_url or ""), endpoint, model, "key", "video_1")
    asks = {"poll": backend.poll(task), "cancel": backend.cancel(task), "delete": backend.delete(task)}
    plans = {
        name: access.build_request(provider_request, 1_700_000_000) if provider_request else None
        for name, provider_request in asks.items()
    }
    body = {"operationName": task_id.replace("~", "/")} if wire == "vertex_videos" else None
    assert all(
        provider_request is None
        or (provider_request.repeatable, provider_request.starts_task, provider_request.body) == (True, False, body)
        for provider_request in asks.values()
    )
    submit = access.build_request(backend.submit(build_spec(wire, {"model": model})), 1_700_000_000)
    plans["submit"] = submit
    assert {
        name: http_request and f"{http_request.method} {http_request.url}" for name, http_request in plans.items()
    } == addresses
    assert TABLES[wire].get("headers", {}).items() <= dict(submit.headers).items()


@EVERY
def test_requests_after_the_submit_pass_and_name_the_task(wire: str) -> None:
    backend = VIDEO_BACKENDS[wire]
    for provider_request in (
        backend.poll(TASK),
        backend.cancel(TASK),
        backend.delete(TASK),
        backend.find_content(TASK, "video"),
    ):
        if isinstance(provider_request, ProviderRequest):
            assert provider_request.repeatable
            assert not provider_request.starts_task
            assert provider_request.path is not None
    poll = backend.poll(TASK)
    if wire == "vertex_videos":
        assert (poll.method, poll.body) == ("POST", {"operationName": "task-1"})
        return
    assert (poll.method, poll.body) == ("GET", None)
    assert "task-1" in (poll.path or "")


@table_rows("wire", VIDEO_BACKENDS)
@table_rows("task_id", ["a:b=c~d.e", "x" * MAX_ID_CHARS, "../../v1/keys", "a?b=c&d#e", "a b\r\nX: y"])
def test_a_task_id_cannot_change_a_requests_address(wire: str, task_id: str) -> None:
    backend, task = VIDEO_BACKENDS[wire], ProviderTask(task_id, "models/x", None)
    provider = OWNERS[wire]
    endpoint = next(one for one in provider.endpoints if one.wire == wire)
    access = ProviderAccess(Channel("up", provider.slug, "https://host/base"), endpoint, "models/x", "key", "mark")
    for provider_request in (backend.poll(task), backend.cancel(task), backend.delete(task)):
        if provider_request is None:
            continue
        url = access.build_request(provider_request, 1_700_000_000).url
        assert url.startswith("https://host/")
        path, _, query = url.removeprefix("https://host/").partition("?")
        assert ".." not in path.split("/")
        assert not set(" \r\n#") & set(url)
        assert "b=c&d" not in query or task_id not in url


@EVERY
def test_a_video_backend_has_no_state(wire: str) -> None:
    backend = VIDEO_BACKENDS[wire]
    assert not getattr(backend, "__dict__", None)
    assert type(backend)().poll(TASK).path == backend.poll(TASK).path


# ---- answers


@list_cases(TABLES, "submitted")
def test_parse_submitted_returns_the_task_or_its_error(wire: str, row: Any) -> None:
    check_parsed(wire, VIDEO_BACKENDS[wire].parse_submit_answer, row)


@list_cases(TABLES, "polled")
def test_parse_polled_returns_the_status_or_raises(wire: str, row: Any) -> None:
    check_parsed(wire, VIDEO_BACKENDS[wire].parse_poll_answer, row)


@list_cases(TABLES, "parse_content_location")
def test_parse_content_location_returns_the_address_or_raises(wire: str, row: Any) -> None:
    check_parsed(wire, VIDEO_BACKENDS[wire].parse_content_location, row)


@list_cases(TABLES, "content")
def test_find_content_returns_the_location_of_a_variant(wire: str, row: Any) -> None:
    task, variant, expected = row
    assert describe(VIDEO_BACKENDS[wire].find_content(ProviderTask(*task), variant)) == expected


@list_cases(TABLES, "refusals")
def test_parse_refused_returns_the_error_of_an_answer(wire: str, row: Any) -> None:
    status, answer, kind, message = row
    raw = answer.encode() if isinstance(answer, str) else build_answer(TABLES[wire], answer)
    error = VIDEO_BACKENDS[wire].parse_error_answer(status, raw, (SECRET,), provider_retry_after_s=9.0)
    assert (type(error), error.message) == (getattr(errors, kind), message)
    assert "picture" not in error.message
    assert not isinstance(error, ProviderRateLimited) or error.provider_retry_after_s == 9.0
    assert not isinstance(error, ProviderRejected) or 400 <= error.status < 500


def check_parsers(wire: str, raw: bytes) -> None:
    """The parsers raise nothing but a ``ProviderError``, and what they return can be used."""
    backend, has_clues = VIDEO_BACKENDS[wire], wire not in {"openai_videos", "vertex_videos"}
    for read in (backend.parse_submit_answer, backend.parse_poll_answer):
        try:
            found = read(raw, ())
        except ProviderError:
            continue
        assert found.progress is None or 0 <= found.progress <= 100
        if has_clues:
            assert (found.state == "completed") == (found.clue is not None)
        if has_clues or read == backend.parse_poll_answer:
            assert (found.state == "failed") == (found.error is not None)
        if read == backend.parse_submit_answer:
            assert ".." not in (backend.poll(ProviderTask(found.id or "", "m")).path or "..").split("/")
        assert backend.find_content(ProviderTask(found.id or "x", "m", found.clue or "x"), "video") is not None
    with suppress(ProviderBadResponse):
        assert isinstance(backend.read_video(raw), bytes)
    with suppress(ProviderBadResponse):
        assert (backend.parse_content_location(raw, ()).url or "").startswith("http")
    for status in (200, 400, 401, 404, 429, 500):
        assert isinstance(backend.parse_error_answer(status, raw, ()), ProviderError)


@table_rows("raw", [b"{}", b'{"response": {}}', b'{"response": {"videos": []}}', b'{"response": {"videos": [{}]}}'])
def test_an_answer_without_a_video_is_no_empty_video(raw: bytes) -> None:
    with pytest.raises(ProviderBadResponse, match="no video"):
        VIDEO_BACKENDS["vertex_videos"].read_video(raw)


@EVERY
@given(data=st.data())
def test_parsers_survive_junk_in_a_recorded_answer(wire: str, data: st.DataObject) -> None:
    answer = data.draw(st.sampled_from(list(TABLES[wire]["answers"].values())).flatmap(spoilt))
    check_parsers(wire, orjson.dumps(answer))


@EVERY
def test_parsers_survive_any_depth_in_a_recorded_answer(wire: str) -> None:
    for answer in TABLES[wire]["answers"].values():
        for name in {*answer, "error", "code", "message", "issues"}:
            check_parsers(wire, orjson.dumps(answer | {name: "@"}).replace(b'"@"', b"[" * 1000 + b"]" * 1000))


_WORDS = st.sampled_from(["id", "task_id", "status", "task_status", "code", "error", "data", "output", "done", "name"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**53) | st.text(max_size=4) | st.sampled_from(["failed", "succeed"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(_WORDS, _VALUES, max_size=5).map(orjson.dumps) | st.binary(max_size=40))
def test_parsers_survive_any_bytes(raw: bytes) -> None:
    for wire in VIDEO_BACKENDS:
        check_parsers(wire, raw)


@table_rows("raw", [b"", b"\xff\xfe", b"[" * 20_000, b"null", b'{"a":', b"<html></html>", b"1e999"])
@table_rows("wire", VIDEO_BACKENDS)
def test_parsers_reject_what_is_no_object(wire: str, raw: bytes) -> None:
    backend: VideoBackend = VIDEO_BACKENDS[wire]
    for read in (backend.parse_submit_answer, backend.parse_poll_answer):
        with pytest.raises(ProviderError):
            read(raw, ())
    check_parsers(wire, raw)
