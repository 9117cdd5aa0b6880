"""The public API's part about videos: jobs that are submitted, followed and fetched.

Which fields there are and what is checked of them: ``dialects/video_fields.py``; how jobs are told: ``web/videos.py``.
"""

from gateway.domain.video import MAX_PROMPT_CHARS, MAX_SECONDS
from gateway.domain.webhook import MAX_WEBHOOK_URL
from gateway.web.admin.doors import Query
from gateway.web.admin.shapes import INTEGER, TEXT, maybe, one_of
from gateway.web.openapi.entry import (
    BYTES,
    EVENTS,
    FORM,
    JSON,
    Answer,
    Entry,
    answer,
    body,
    either,
    form,
    in_path,
    in_query,
    items,
    matching,
    ref,
    stream,
    told,
    whole,
)
from gateway.web.openapi.nouns import Schema
from gateway.web.openapi.text import COSTS, METERED, MODEL, NAMED

_VIDEO_ID = matching(r"^video_[0-9a-f]{32}$")
_ID = in_path("id", "The task's id.", _VIDEO_ID)
_PROMPT = told(TEXT, "What is to happen.", minLength=1, maxLength=MAX_PROMPT_CHARS)
_WEBHOOK = told(
    TEXT,
    "Where its end is told, as Standard Webhooks have it; the key's own address by default. Its host must be one that "
    "`videos.webhook_hosts` names.",
    format="uri",
    pattern=r"^https?://[A-Za-z0-9_.:\[\]-]+([/?#][!-~]*)?$",
    maxLength=MAX_WEBHOOK_URL,
)
_ASKED: dict[str, Schema] = {
    "model": MODEL,
    "prompt": _PROMPT,
    "seconds": told(
        either(matching("^[1-9][0-9]{0,2}$"), whole(1, MAX_SECONDS)),
        'How long, as in `"4"`; what there is depends on the model.',
    ),
    "size": told(
        TEXT,
        "Width and height in pixels, as in `1280x720`; what there is depends on the model.",
        pattern="^[1-9][0-9]{0,4}x[1-9][0-9]{0,4}$",
    ),
    "webhook_url": _WEBHOOK,
}
_PICTURE_URL = matching(r"^(https?://[!#-;=?-Z\[\]_a-z~]+|data:image/[a-z]+;base64,[A-Za-z0-9+/]+=*)$")
_REFERENCE = told(
    either(_PICTURE_URL, answer("image_url", image_url=_PICTURE_URL)),
    "A picture to begin with: its address, or a `data:` URL.",
)
_THIS = ("id", "$response.body#/id")
_NEXT = dict.fromkeys(("get_video", "follow_video", "get_video_content", "remix_video", "delete_video"), _THIS)
"""What can be done with a task, by the id in its answer."""
_FAULTS = (400, 401, 403, 404, 429, 500, 503)

VIDEO_SCHEMAS: dict[str, Schema] = {
    "Video": answer(
        "id object model status progress created_at size seconds",
        id=_VIDEO_ID,
        object=one_of("video"),
        model=TEXT,
        status=told(
            one_of("queued", "processing", "in_progress", "completed", "failed"),
            "`completed` and `failed` are the end. The convention's client libraries are told `in_progress`, all "
            "others `processing`.",
        ),
        progress=told(whole(0, 100), "Percent."),
        created_at=told(INTEGER, "Unix seconds."),
        completed_at=maybe(INTEGER),
        expires_at=told(maybe(INTEGER), "Until when its file is kept."),
        prompt=told(TEXT, "Not in events."),
        size=TEXT,
        seconds=told(TEXT, "A number, as text."),
        remixed_from_video_id=maybe(TEXT),
        error=told(answer("code message", code=maybe(TEXT), message=maybe(TEXT)), "Only where `status` is `failed`."),
    ),
    "VideoPage": answer(
        "object data has_more",
        object=one_of("list"),
        data=items(ref("Video")),
        first_id=maybe(TEXT),
        last_id=maybe(TEXT),
        has_more={"type": "boolean"},
    ),
    "VideoDeleted": answer("id object deleted", id=TEXT, object=one_of("video.deleted"), deleted={"type": "boolean"}),
}
"""What stands under ``components.schemas``."""


def _submit(path: str, name: str, summary: str) -> Entry:
    return Entry(
        "POST",
        path,
        name,
        "Videos",
        summary,
        "The job is on record, and its price set aside, before a provider is asked. A parameter that the model does "
        "not support is refused.",
        parameters=(NAMED,),
        takes={
            JSON: body("model prompt", **_ASKED, input_reference=_REFERENCE),
            FORM: form("model prompt", **_ASKED, input_reference=told(BYTES, "A picture to begin with.")),
        },
        example={"model": "demo-video", "prompt": "Waves on a beach", "seconds": "4", "size": "1280x720"},
        answers=(Answer("The task.", {JSON: ref("Video")}, headers=("openai-poll-after-ms", *COSTS), links=_NEXT),),
        faults=(*METERED, 409),
    )


def _poll(path: str, name: str, summary: str) -> Entry:
    return Entry(
        "GET",
        path,
        name,
        "Videos",
        summary,
        "A job that has failed is told with status 200, its reason in `error`. Ask again after what the header "
        "`openai-poll-after-ms` says.",
        parameters=(_ID,),
        answers=(Answer("The task.", {JSON: ref("Video")}, headers=("openai-poll-after-ms",), links=_NEXT),),
        faults=_FAULTS,
    )


VIDEO_ENTRIES: tuple[Entry, ...] = (
    _submit("/v1/videos", "create_video", "Submit a job"),
    _poll("/v1/videos/{id}", "get_video", "How a job stands"),
    Entry(
        "GET",
        "/v1/videos/{id}/events",
        "follow_video",
        "Videos",
        "How a job moves, as it does",
        "A stream that ends with the job. At most 32 of an account at a time.",
        parameters=(_ID,),
        answers=(
            Answer(
                "The task, now and whenever it has changed.",
                {EVENTS: stream(answer("id status progress"), "Events `video.queued`, `video.completed` and so on.")},
            ),
        ),
        faults=_FAULTS,
    ),
    Entry(
        "GET",
        "/v1/videos/{id}/content",
        "get_video_content",
        "Videos",
        "The file",
        "Only of a job that is `completed`. A member who is signed in to the console needs no key for it.",
        parameters=(
            _ID,
            in_query(Query("variant", "Which file.", one_of("video", "thumbnail", "spritesheet"))),
            ref("Range", "parameters"),
        ),
        answers=(
            Answer("The file.", {"video/*": BYTES, "image/*": BYTES}),
            Answer("A range of it.", {"video/*": BYTES, "image/*": BYTES}, 206),
        ),
        faults=(*_FAULTS, 409, 412, 416, 502, 504),
    ),
    Entry(
        "POST",
        "/v1/videos/{id}/remix",
        "remix_video",
        "Videos",
        "A new job from a video",
        "On the channel that made it, as long and as large as it is.",
        parameters=(_ID, NAMED),
        takes={
            JSON: {**body("prompt", prompt=_PROMPT, webhook_url=_WEBHOOK), "additionalProperties": False},
            FORM: form("prompt", prompt=_PROMPT, webhook_url=_WEBHOOK),
        },
        example={"prompt": "The same at night"},
        answers=(Answer("The new task.", {JSON: ref("Video")}, headers=("openai-poll-after-ms", *COSTS), links=_NEXT),),
        faults=(*METERED, 409),
    ),
    Entry(
        "GET",
        "/v1/videos",
        "list_videos",
        "Videos",
        "The account's jobs",
        parameters=(
            in_query(Query("limit", "How many; 20 by default.", whole(0, 100))),
            in_query(Query("after", "Those that follow the task of this id.", matching(r"^(video_[0-9a-f]{32})?$"))),
            in_query(Query("order", "The newest first (`desc`, the default), or last.", one_of("asc", "desc"))),
        ),
        answers=(
            Answer(
                "A page of them.",
                {JSON: ref("VideoPage")},
                links={
                    "list_videos": ("after", "$response.body#/last_id"),
                    "get_video": ("id", "$response.body#/data/0/id"),
                },
            ),
        ),
        faults=_FAULTS,
    ),
    Entry(
        "DELETE",
        "/v1/videos/{id}",
        "delete_video",
        "Videos",
        "Forget a job and its file",
        "Only of a job that has ended.",
        parameters=(_ID,),
        answers=(Answer("It is forgotten.", {JSON: ref("VideoDeleted")}),),
        faults=(*_FAULTS, 409),
    ),
    _submit("/v1/video/generations", "create_video_generation", "The same as `POST /v1/videos`"),
    _poll("/v1/video/generations/{id}", "get_video_generation", "The same as `GET /v1/videos/{id}`"),
)
