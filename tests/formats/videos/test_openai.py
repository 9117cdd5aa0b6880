"""Videos in the OpenAI API format: answers to clients, and what only this video backend does.

Shapes: OpenAI's OpenAPI document, ``VideoResource``, ``VideoListResource`` and
``DeletedVideoResource``.
"""

from typing import Any, get_args

import attrs
import orjson
import pytest
from openai.types import Video

from gateway.domain.video import TRANSITIONS, Reference, VideoError, VideoJob, VideoState
from gateway.errors import InvalidRequest
from gateway.formats.videos import openai as videos
from gateway.formats.videos.backend import ProviderTask, VideoBackend, VideoSpec
from gateway.formats.wire.request_body import Form
from tests.support.image_calls import read_sent, upload
from tests.support.image_providers import draw
from tests.support.request_records import ROW
from tests.support.table_rows import table_rows

BACKEND: VideoBackend = videos.OpenAiVideoBackend()
NOW = 1_750_000_000_999
JOB = VideoJob("video_1", ROW, "a cat", "1280x720", "8", "video_0", progress=7)
TASK = ProviderTask("video_68d7512d07848190b3e45da0ecbebcde", "sora-2")


def job(state: VideoState, **values: Any) -> VideoJob:
    return attrs.evolve(JOB, state=state, **values)


def done() -> VideoJob:
    return job("fetching").complete(NOW, NOW + 60_000)


def build_spec(**fields: Any) -> VideoSpec:
    return VideoSpec("sora-2", "a cat", "video_mark", **fields)


# ---- answers to clients


@table_rows(
    ("state", "spec", "openai"),
    [
        ("created", "queued", "queued"), ("submitting", "queued", "queued"), ("queued", "queued", "queued"),
        ("processing", "processing", "in_progress"), ("fetching", "processing", "in_progress"),
        ("completed", "completed", "completed"), ("failed", "failed", "failed"),
    ],
)  # fmt: skip
def test_build_status_uses_the_words_of_the_clients_api(state: VideoState, spec: str, openai: str) -> None:
    assert (videos.build_status(state, "spec"), videos.build_status(state, "openai")) == (spec, openai)


def test_build_status_uses_all_words_of_the_client_library() -> None:
    words = {videos.build_status(state, "openai") for state in TRANSITIONS}
    assert words == set(get_args(Video.model_fields["status"].annotation))


def test_build_video_of_a_running_job_has_every_key_and_no_error() -> None:
    assert videos.build_video(job("processing"), "spec") == {
        "id": "video_1",
        "object": "video",
        "model": "m",
        "status": "processing",
        "progress": 7,
        "created_at": 1_750_000_000,
        "completed_at": None,
        "expires_at": None,
        "prompt": "a cat",
        "size": "1280x720",
        "seconds": "8",
        "remixed_from_video_id": "video_0",
    }


def test_build_video_of_a_completed_job_has_its_times() -> None:
    reported = videos.build_video(done(), "openai")
    assert (reported["status"], reported["progress"]) == ("completed", 100)
    assert (reported["completed_at"], reported["expires_at"]) == (NOW // 1000, NOW // 1000 + 60)
    assert "error" not in reported


def test_build_video_of_a_failed_job_has_its_error_and_no_times() -> None:
    reported = videos.build_video(job("processing").fail(VideoError("timeout", "Too late"), NOW), "spec")
    assert (reported["status"], reported["error"]) == ("failed", {"code": "timeout", "message": "Too late"})
    assert (reported["completed_at"], reported["expires_at"]) == (None, None)


@table_rows("state", TRANSITIONS)
def test_the_client_library_parses_build_video(state: VideoState) -> None:
    reported = orjson.dumps(videos.build_video(job(state), "openai"))
    if state != "failed":
        assert Video.model_validate_json(reported, strict=True).status == videos.build_status(state, "openai")


def test_build_video_shows_nothing_internal() -> None:
    inside = {"channel": "hush", "provider": "hush", "upstream_id": "hush", "clue": "hush", "key_print": "hush"}
    reported = videos.build_video(
        job("processing", **inside, webhook_url="hush", upstream_model="hush", owner="hush"), "spec"
    )
    assert "hush" not in str(reported)


def test_build_videos_names_the_ends_of_a_page() -> None:
    other = attrs.evolve(JOB, id="video_2")
    page = videos.build_videos([JOB, other], lambda one: "openai" if one is other else "spec", has_more=True)
    assert (page["object"], page["first_id"], page["last_id"], page["has_more"]) == ("list", "video_1", "video_2", True)
    assert page["data"] == [videos.build_video(JOB, "spec"), videos.build_video(other, "openai")]
    empty: dict[str, Any] = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    assert videos.build_videos([], lambda _: "spec", has_more=False) == empty


def test_build_deleted_says_what_is_deleted() -> None:
    assert videos.build_deletion("video_1") == {"id": "video_1", "object": "video.deleted", "deleted": True}


# ---- requests to providers


def test_submit_sends_the_safe_fields() -> None:
    """Others are refused: ``openai_videos.json``."""
    fields = dict.fromkeys(videos.SAFE_FIELDS, "x")
    assert read_sent(BACKEND.submit(build_spec(extra=fields))) == fields | {"model": "sora-2", "prompt": "a cat"}
    with pytest.raises(InvalidRequest) as refused:
        BACKEND.submit(build_spec(extra={"x" * 500: 1}))
    assert refused.value.param == "x" * 64


def test_submit_and_remix_name_the_job_in_the_idempotency_key() -> None:
    remix = BACKEND.remix(TASK, build_spec())
    assert remix is not None
    assert BACKEND.submit(build_spec()).headers == remix.headers == (("Idempotency-Key", "video_mark"),)


def test_submit_sends_a_file_in_a_form() -> None:
    file = upload(draw(), "input_reference")
    answer = BACKEND.submit(build_spec(seconds=4, reference=Reference(file))).body
    assert isinstance(answer, Form)
    assert answer.fields == {"model": "sora-2", "prompt": "a cat", "seconds": "4"}
    assert answer.files == (("input_reference", file),)


def test_remix_sends_the_prompt_alone() -> None:
    remix = BACKEND.remix(TASK, build_spec(extra={"seconds": "60"}))
    assert remix is not None
    assert (remix.method, remix.path, remix.starts_task) == ("POST", f"/videos/{TASK.id}/remix", True)
    assert read_sent(remix) == {"prompt": "a cat"}


# ---- another gateway as the provider


@table_rows("words", ["spec", "openai"])
@table_rows("state", TRANSITIONS)
def test_parse_polled_reads_what_build_video_writes(state: VideoState, words: Any) -> None:
    reported = (
        job(state, progress=40) if state != "failed" else job("processing").fail(VideoError("timeout", "Late"), NOW)
    )
    status = BACKEND.parse_poll_answer(orjson.dumps(videos.build_video(reported, words)), ())
    expected = {"created": "queued", "submitting": "queued", "fetching": "processing"}.get(state, state)
    assert status.state == expected
    assert (status.seconds, status.size) == ("8", "1280x720")
    assert state != "failed" or status.error == VideoError("upstream_error", "Late (timeout)")
