"""Merge the answers of several requests with one choice each into one answer with ``n`` choices.

This serves providers that give one choice per request. ``proxy/fan_out.py`` sends the requests. Answers are in the
OpenAI API format.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import Usage, add_usages
from gateway.errors import ProviderBadResponse
from gateway.formats.chat.openai.chat import DONE_EVENT, ChatPassthrough
from gateway.formats.errors.openai import Secrets
from gateway.formats.stream import StreamTransform
from gateway.formats.stream_tail import DONE_MARK
from gateway.formats.usage.prompt_tokens import estimate_prompt
from gateway.formats.wire import sse
from gateway.formats.wire.json_values import list_objects, loads_or_none

MAX_REQUESTS = 16
"""Maximum number of provider requests per client request: more would use up all connections to the provider."""
_IDENTITY_FIELDS = ("id", "created", "model")

Json = dict[str, Any]


def make_single(inference: InferenceRequest) -> InferenceRequest:
    """Return the request for one choice. Its stream always reports usage, because the counts are summed."""
    body = {name: value for name, value in inference.body.items() if name != "n"}
    return attrs.evolve(inference, body=body, choices=1, include_usage=True)


def merge_answers(answers: Sequence[bytes]) -> bytes:
    """Merge unstreamed answers with one choice each. Raises ``ProviderBadResponse`` if an answer has no choice."""
    answer_bodies = [exact_json.loads(answer) for answer in answers]
    choices = [_find_choice(body) | {"index": index} for index, body in enumerate(answer_bodies)]
    joint_answer = answer_bodies[0] | {"choices": choices}
    if usages := [body["usage"] for body in answer_bodies if isinstance(body.get("usage"), dict)]:
        joint_answer["usage"] = _add_counts(usages)
    return exact_json.dumps(joint_answer)


def _find_choice(answer: Json) -> Json:
    choice = next(iter(list_objects(answer.get("choices"))), None)
    if choice is None:
        raise ProviderBadResponse("The provider's answer has no choices")
    return choice


def _add_counts(usages: Sequence[Mapping[str, Any]]) -> Json:
    """Add the numbers of the same fields, nested objects included; for other values keep the first."""
    sums: Json = {}
    for name in dict.fromkeys(name for counts in usages for name in counts):
        values = [counts[name] for counts in usages if counts.get(name) is not None]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        nested_counts = [value for value in values if isinstance(value, dict)]
        if nested_counts:
            sums[name] = _add_counts(nested_counts)
        elif numbers:
            sums[name] = sum(numbers)
        else:
            sums[name] = values[0] if values else None
    return sums


class ChoiceMerger:
    """Merges ``count`` streams with one choice each. All chunks get the id, time and model of the first one."""

    def __init__(self, count: int) -> None:
        self._splitters = [sse.SseSplitter() for _ in range(count)]
        self._usages: dict[int, Json] = {}
        self._identity: Json = {}
        self._open_count = count

    def feed(self, index: int, data: bytes) -> bytes:
        """Convert whole events of the stream ``index`` into events of the merged stream.

        Raises ``ProviderBadResponse`` for an event that is too long or no object.
        """
        try:
            events = self._splitters[index].split(data)
        except sse.EventTooLong as error:
            raise ProviderBadResponse(str(error), phase="stream") from None
        return b"".join([self._convert_event(index, event) for event in events])

    def end(self) -> bytes:
        """Record that a stream is complete. After the last stream, return the end of the merged stream."""
        self._open_count -= 1
        if self._open_count:
            return b""
        usages = [usage for _, usage in sorted(self._usages.items())]
        usage_chunk = {**self._identity, "object": "chat.completion.chunk", "choices": [], "usage": _add_counts(usages)}
        return (_build_event(usage_chunk) if usages else b"") + DONE_EVENT

    def _convert_event(self, index: int, event: bytes) -> bytes:
        payload = sse.parse_data(event)
        if not payload or payload.startswith(DONE_MARK):  # a comment, or an end mark
            return b""
        chunk = loads_or_none(payload)
        if not isinstance(chunk, dict):
            raise ProviderBadResponse("The provider's stream has an event that is no object", phase="stream")
        usage = chunk.pop("usage", None)
        if isinstance(usage, dict):
            self._usages[index] = usage
        choices = list_objects(chunk.get("choices"))
        if not choices:
            return b""
        if not self._identity:
            self._identity = {name: chunk[name] for name in _IDENTITY_FIELDS if name in chunk}
        return _build_event({**chunk, **self._identity, "choices": [{**choices[0], "index": index}]})


def _build_event(value: Json) -> bytes:
    return b"data: " + exact_json.dumps(value) + b"\n\n"


class MergedStream(ChatPassthrough):
    """The transform of a merged stream, whose usage is the sum of the usages of ``parts``."""

    __slots__ = ("_parts",)

    def __init__(self, inference: InferenceRequest, parts: Sequence[StreamTransform], secrets: Secrets = ()) -> None:
        super().__init__(inference, secrets)
        self._parts = parts

    def parse_usage(self) -> Usage:
        return add_parts([part.parse_usage() for part in self._parts], self._inference)


def add_parts(usages: Iterable[Usage], inference: InferenceRequest) -> Usage:
    """Add the usages of sent requests.

    A request without usage counts as its estimated prompt. If all requests are without usage, the sum is empty.
    """
    usages = list(usages)
    if all(usage.source == "none" for usage in usages):
        return Usage()
    prompt_usage = Usage(estimate_prompt(inference), source="estimate")
    return add_usages([prompt_usage if usage.source == "none" else usage for usage in usages])
