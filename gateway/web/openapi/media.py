"""The public API's part about pictures and sound.

Which fields there are and what is checked of them: ``dialects/openai_images.py``, ``picture_fields.py``,
``openai_speech.py``, ``openai_transcriptions.py``.
"""

from gateway.dialects.openai_images import MAX_PROMPT_CHARS
from gateway.dialects.openai_speech import MAX_INPUT_CHARS, MEDIA_TYPES
from gateway.domain.media import MEDIA_PATH
from gateway.domain.picture import MAX_INPUT_PICTURES, MAX_PICTURES
from gateway.web.admin.doors import Query
from gateway.web.admin.shapes import COUNT, FLAG, INTEGER, NUMBER, TEXT, one_of
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
    number,
    ref,
    stream,
    told,
    whole,
)
from gateway.web.openapi.nouns import Schema
from gateway.web.openapi.text import COSTS, METERED, MODEL, NAMED, STREAMED

_PAINTED: dict[str, Schema] = {
    "model": MODEL,
    "prompt": told(TEXT, "What is to be seen.", minLength=1, maxLength=MAX_PROMPT_CHARS),
    "n": told(whole(1, MAX_PICTURES), "How many; some models make only one.", default=1),
    "size": told(TEXT, "Width and height in pixels, or `auto`.", pattern=r"^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"),
    "response_format": told(
        one_of("url", "b64_json"), "A link that is good for a while, or the picture itself.", default="url"
    ),
    "quality": told(TEXT, "`low`, `medium`, `high`, `auto`: what the model knows."),
    "background": told(TEXT, "`transparent`, `opaque` or `auto`."),
    "output_format": told(TEXT, "`png`, `jpeg`, `webp`."),
    "output_compression": told(whole(0, 100), "Percent, of what can be compressed."),
    "style": told(TEXT, "What the model knows."),
    "stream": STREAMED,
    "partial_images": told(whole(0, 3), "Pictures on the way, with `stream`."),
    "user": told(TEXT, "Who the call is for, in your words."),
}
_FILE = told(BYTES, "A PNG, a JPEG or a WebP file.")
_SOUND_FILE = told(BYTES, "A recording, at most as large as `server.max_file_mb` says.")
_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
_HEARD: dict[str, Schema] = {
    "file": _SOUND_FILE,
    "model": MODEL,
    "prompt": told(TEXT, "What came before, or words that are in it."),
    "temperature": told(number(0, 1), "How freely words are chosen."),
}
_SPEECH = body(
    "model input voice",
    model=MODEL,
    input=told(TEXT, "The text to speak.", minLength=1, maxLength=MAX_INPUT_CHARS),
    voice=told(either(TEXT, answer("id", id=TEXT)), "Whose voice, by its name."),
    instructions=told(TEXT, "How to speak."),
    response_format=told(one_of(*MEDIA_TYPES), "The form of the sound.", default="mp3"),
    speed=told(number(0.25, 4), "How fast.", default=1),
    stream_format=told(one_of("audio", "sse"), "Bytes, or events.", default="audio"),
)
_PAINTED_EVENT = "With `stream`: events of whole and partial pictures in base64, then `data: [DONE]`."

MEDIA_SCHEMAS: dict[str, Schema] = {
    "Images": answer(
        "created data",
        created=told(INTEGER, "Unix seconds."),
        data=items(
            answer(
                "",
                url=told(TEXT, "Where `response_format` is `url`. Whoever has it may fetch it; no key is needed."),
                b64_json=told(TEXT, "Where it is `b64_json`."),
                revised_prompt=told(TEXT, "What the provider painted by."),
            ),
        ),
        usage=answer(
            "input_tokens output_tokens total_tokens",
            input_tokens=COUNT,
            output_tokens=COUNT,
            total_tokens=COUNT,
        ),
    ),
    "Transcript": answer(
        "text",
        text=TEXT,
        language=told(TEXT, "With `verbose_json`."),
        duration=told(either(NUMBER, TEXT), "Seconds, with `verbose_json`."),
        segments=items(answer("")),
        words=items(answer("")),
    ),
}
"""What stands under ``components.schemas``."""

_WRITTEN: dict[str, Schema] = {
    JSON: ref("Transcript"),
    "text/plain": told(TEXT, "With `text`, `srt` or `vtt`."),
}
_HEARD_EVENTS: dict[str, Schema] = {
    EVENTS: stream(answer("type", type=TEXT), "With `stream`: `transcript.text.delta`, then `transcript.text.done`."),
}
_HEARD_ABOUT = "What was said, in the form that was asked for."

MEDIA_ENTRIES: tuple[Entry, ...] = (
    Entry(
        "POST",
        "/v1/images/generations",
        "create_image",
        "Images",
        "Pictures from words",
        "What a model does not support is refused, with its name in `param`, before anything is spent.",
        parameters=(NAMED,),
        takes={JSON: body("model prompt", **_PAINTED)},
        example={"model": "demo-image", "prompt": "A lighthouse at dawn", "size": "1024x1024"},
        answers=(
            Answer(
                "The pictures.",
                {JSON: ref("Images"), EVENTS: stream(answer("type", type=TEXT), _PAINTED_EVENT)},
                headers=COSTS,
            ),
        ),
        faults=(*METERED, 409),
    ),
    Entry(
        "POST",
        "/v1/images/edits",
        "edit_image",
        "Images",
        "A picture changed by words",
        f"A form: one picture to {MAX_INPUT_PICTURES} (`image`, or `image[]` repeated) and the fields of a generation.",
        parameters=(NAMED,),
        takes={
            FORM: form(
                "image model prompt",
                image=_FILE,
                mask=told(BYTES, "Where to paint: the transparent parts of a PNG of the same size."),
                **_PAINTED,
            ),
        },
        example={"model": "demo-image", "prompt": "Add a boat", "image": "@picture.png"},
        answers=(
            Answer(
                "The pictures.",
                {JSON: ref("Images"), EVENTS: stream(answer("type", type=TEXT), _PAINTED_EVENT)},
                headers=COSTS,
            ),
        ),
        faults=(*METERED, 409),
    ),
    Entry(
        "POST",
        "/v1/images/variations",
        "create_image_variation",
        "Images",
        "Not implemented",
        "So are other paths of the convention that this gateway does not serve: files, batches, assistants, threads, "
        "vector stores, fine-tuning, and what became of a response.",
        faults=(401, 403, 501),
    ),
    Entry(
        "GET",
        f"{MEDIA_PATH}/{{id}}",
        "get_media",
        "Images",
        "A picture by its link",
        "The link is its own key, and good for as long as it says.",
        rights="anyone",
        parameters=(
            in_path("id", "As the link has it."),
            in_query(Query("expires", "As the link has it."), required=True),
            in_query(Query("signature", "As the link has it."), required=True),
            ref("Range", "parameters"),
        ),
        answers=(
            Answer("The file.", {"image/*": BYTES, "video/*": BYTES}),
            Answer("A range of it.", {"image/*": BYTES, "video/*": BYTES}, 206),
        ),
        faults=(400, 404, 412, 416),
    ),
    Entry(
        "POST",
        "/v1/audio/speech",
        "create_speech",
        "Audio",
        "Speech from text",
        takes={JSON: _SPEECH},
        example={"model": "demo-speech", "input": "Good morning.", "voice": "alloy"},
        answers=(
            Answer(
                "The sound, as it comes.",
                {
                    "audio/*": BYTES,
                    EVENTS: stream(
                        answer("type", type=TEXT), "With `stream_format` `sse`: `speech.audio.delta`, then `….done`."
                    ),
                },
            ),
        ),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/audio/transcriptions",
        "create_transcription",
        "Audio",
        "What is said in a recording",
        takes={
            FORM: form(
                "file model",
                **_HEARD,
                language=told(TEXT, "Its language, as in ISO 639-1."),
                response_format=told(one_of(*_FORMATS, "diarized_json"), "The form of the answer.", default="json"),
                timestamp_granularities=told(items(one_of("word", "segment")), "Repeated, with `[]` or without."),
                stream=told(FLAG, "Answer as a stream of events, where the model can.", default=False),
            ),
        },
        example={"model": "demo-transcription", "file": "@talk.mp3"},
        answers=(Answer(_HEARD_ABOUT, _WRITTEN | _HEARD_EVENTS, headers=COSTS),),
        faults=METERED,
    ),
    Entry(
        "POST",
        "/v1/audio/translations",
        "create_translation",
        "Audio",
        "The same, in English",
        takes={
            FORM: form(
                "file model",
                **_HEARD,
                response_format=told(one_of(*_FORMATS), "The form of the answer.", default="json"),
            ),
        },
        example={"model": "whisper-1", "file": "@talk.mp3"},
        answers=(Answer(_HEARD_ABOUT, _WRITTEN, headers=COSTS),),
        faults=METERED,
    ),
)
