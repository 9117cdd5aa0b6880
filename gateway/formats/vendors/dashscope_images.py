"""Pictures of Alibaba Cloud Model Studio (DashScope): most are tasks, which are begun and asked after until they end.

Tasks: alibabacloud.com/help/en/model-studio/manage-asynchronous-tasks (one that is PENDING can be cancelled; of one
that runs the wish is refused, and does no harm). What is asked where, with which fields:
    Wan 2.5 and older     alibabacloud.com/help/en/model-studio/text-to-image-v2-api-reference
    Wan 2.5, editing      docs.qwencloud.com/api-reference/image-generation/wan25-general-image-editing
    Wan 2.1, editing      alibabacloud.com/help/en/model-studio/wanx-image-edit
    Wan 2.6 and 2.7       docs.qwencloud.com/api-reference/image-generation/wan26-image-gen-edit, and wan27-… beside it
    Qwen-Image            alibabacloud.com/help/en/model-studio/qwen-image-api; docs.qwencloud.com/api-reference/
                          image-generation/qwen-image-editing
Whatever is not begun as a task there is answered at once with the pictures. Every picture that goes in may be a
``data:`` URL; those that come out are addresses, good for a day. Errors: .../help/en/model-studio/error-code.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderRateLimited, ProviderRejected
from gateway.formats.content_filter import build_block, is_block
from gateway.formats.image_backend import ProviderCall
from gateway.formats.image_task import (
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    parse_field,
    parse_image,
    parse_sides,
    parse_state,
)
from gateway.formats.openai.errors import Secrets, mask
from gateway.formats.openai.image_params import check_size
from gateway.formats.request_body import Body, build_data_url

TASKS = "/api/v1/tasks"
_SERVICES = "/api/v1/services/aigc"
_AS_TASK = ("X-DashScope-Async", "enable")
_FIRST_WAIT_S = 1.0
_UNDER_WAY = ("PENDING", "RUNNING")
_OVER = ("SUCCEEDED", "FAILED", "CANCELED", "UNKNOWN")
_FORMATS = ("png",)
_NO_REASON = "The provider gave no reason"
_PARAMETERS = ("negative_prompt", "prompt_extend", "watermark", "seed", "thinking_mode")
"""What a caller may say beside the convention's fields. Not those that change how many pictures come."""
_CALLERS_FAULT = ("InvalidParameter", "InvalidURL", "BadRequest")
_TOO_MANY = 429


@attrs.frozen
class _CallMode:
    """How models are spoken to.

    Attributes:
        path: behind the server's root.
        task: whether it begins a task; else the answer has the pictures.
        talks: the prompt and the pictures are parts of a message; else fields.
        takes: whether it takes pictures.
        needs: whether it cannot do without.
        negative: where ``negative_prompt`` stands.
        function: what an editor of several crafts is asked to do.
    """

    path: str
    task: bool = True
    talks: bool = False
    takes: bool = True
    needs: bool = False
    negative: str = "parameters"
    function: str | None = None


_FIELDS = _CallMode(f"{_SERVICES}/text2image/image-synthesis", takes=False, negative="input")
_MESSAGE = _CallMode(f"{_SERVICES}/image-generation/generation", talks=True)
_AT_ONCE = _CallMode(f"{_SERVICES}/multimodal-generation/generation", talks=True, task=False)
_EDITOR = _CallMode(f"{_SERVICES}/image2image/image-synthesis", needs=True, negative="input")
_MANNERS: Mapping[str, _CallMode] = MappingProxyType(
    {
        "wanx2.1-imageedit": attrs.evolve(_EDITOR, function="description_edit"),
        "wan2.5-i2i*": _EDITOR,
        "wan2.[125]-t2i*": _FIELDS,
        "wanx*-t2i*": _FIELDS,
        "wan*-t2i*": attrs.evolve(_MESSAGE, takes=False),
        "wan2.6-image*": attrs.evolve(_MESSAGE, needs=True),
        "wan*-image*": _MESSAGE,
        "qwen-image": attrs.evolve(_FIELDS, negative="parameters"),
        "qwen-image-plus": attrs.evolve(_FIELDS, negative="parameters"),
        "qwen-image-edit*": attrs.evolve(_AT_ONCE, needs=True),
    },
)
"""By globs of models, the first that matches; without one a model is asked at once, as all the newest are."""


def _find_manner(model: str) -> _CallMode:
    return next((manner for glob, manner in _MANNERS.items() if fnmatchcase(model, glob)), _AT_ONCE)


class DashScopeImageBackend:
    """``ImageBackend``; see there. Paths are behind the server's root."""

    __slots__ = ("_ask", "_call", "_count", "_manner", "_model", "_task")

    def __init__(self, call: InferenceRequest, model: str, _mark: str, _capability: Capability) -> None:
        self._call = call
        self._ask = call.image or ImageRequest("")
        self._model = model
        self._manner = _find_manner(model)
        self._task = ImageTask(TASKS, _FIRST_WAIT_S)
        self._count = 1

    def begin(self, count: int) -> ProviderCall:
        """What to ask first."""
        manner = self._manner
        check_expressible(self._call, takes=manner.takes, needs=manner.needs)
        check_format(self._call.body.get("output_format"), _FORMATS)
        check_size(self._call.body)
        self._count = count
        said: Body = {"model": self._model, "input": self._build_input(), "parameters": self._build_parameters()}
        for name in _PARAMETERS:
            if self._call.body.get(name) is not None:
                value = self._call.body[name]
                said[manner.negative if name == "negative_prompt" else "parameters"][name] = (
                    value if name == "negative_prompt" else parse_field(value)
                )
        return ProviderCall(said, path=manner.path, begins=manner.task, headers=(_AS_TASK,) if manner.task else ())

    def _build_input(self) -> Body:
        manner = self._manner
        images = [build_data_url(file) for file in self._call.files if file.field == "image"]
        prompt = self._ask.prompt
        if manner.talks:
            content = [*({"image": image} for image in images), {"text": prompt}]
            return {"messages": [{"role": "user", "content": content}]}
        if manner.function is not None:
            return {"function": manner.function, "prompt": prompt, "base_image_url": images[0]}
        return {"prompt": prompt, "images": images} if images else {"prompt": prompt}

    def _build_parameters(self) -> Body:
        parameters: Body = {}
        if self._ask.size is not None:
            parameters["size"] = "{}*{}".format(*parse_sides(self._ask.size))
        if self._manner.task or self._count > 1:  # a task makes four where it is not told; the others make one
            parameters["n"] = self._count
        return parameters

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderCall:
        """The pictures, or how to ask after the task."""
        value = self._task.parse_object(raw)
        if value is None:
            return self._task.ask_after()
        found = value.get("output")
        output: dict[str, Any] = found if isinstance(found, dict) else {}
        state = output.get("task_status")
        self._task.ended = state in _OVER
        if state in _UNDER_WAY:
            return self._task.follow(output.get("task_id"))
        if state == "FAILED" or _has_code(value):
            raise _find_fault(output if state == "FAILED" else value, secrets)
        if state is not None and state != "SUCCEEDED":
            raise ProviderBadResponse(f"The provider's task is {parse_state(state, secrets)}")
        return build_images(list(_parse_images(output, secrets)), self._count)

    def abandon(self) -> ProviderCall | None:
        """How to cancel the task."""
        return self._task.abandon()


def _parse_images(output: dict[str, Any], secrets: Secrets) -> Iterator[Image]:
    """Pictures of either shape. Raises a fault for one that failed: all of them were asked for."""
    for result in _list(output.get("results")):
        if isinstance(result, dict):
            if _has_code(result):
                raise _find_fault(result, secrets)
            prompt = result.get("actual_prompt")
            image = parse_image(result.get("url"))
            yield attrs.evolve(image, revised_prompt=prompt) if isinstance(prompt, str) else image
    for choice in _list(output.get("choices")):
        message = choice.get("message") if isinstance(choice, dict) else None
        for part in _list(message.get("content") if isinstance(message, dict) else None):
            if isinstance(part, dict) and "image" in part:
                yield parse_image(part["image"])


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _has_code(said: dict[str, Any]) -> bool:
    code = said.get("code")
    return isinstance(code, str) and bool(code)


def _find_fault(said: dict[str, Any], secrets: Secrets) -> ProviderError:
    """The fault that ``{"code", "message"}`` is."""
    code = said["code"] if isinstance(said.get("code"), str) else ""
    told = said.get("message")
    message = mask(told, secrets) if isinstance(told, str) and told else _NO_REASON
    if is_block(code, message):
        return build_block(message, secrets)
    if code.startswith("Throttling"):
        limited = ProviderRateLimited(message, status=_TOO_MANY, code=mask(code, secrets)[:100])
        limited.retry_after_s = 1
        return limited
    if code.startswith(_CALLERS_FAULT):
        return ProviderRejected(message, status=400, code=mask(code, secrets)[:100])
    return ProviderBadResponse(f"The provider failed: {message}")
