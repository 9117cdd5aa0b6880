"""Images of Alibaba Cloud Model Studio (DashScope): most models create tasks, which are polled until they end.

Tasks: alibabacloud.com/help/en/model-studio/manage-asynchronous-tasks (a PENDING task can be cancelled; a running task
rejects the request, harmlessly). Paths and fields:
    Wan 2.5 and older     alibabacloud.com/help/en/model-studio/text-to-image-v2-api-reference
    Wan 2.5, editing      docs.qwencloud.com/api-reference/image-generation/wan25-general-image-editing
    Wan 2.1, editing      alibabacloud.com/help/en/model-studio/wanx-image-edit
    Wan 2.6 and 2.7       docs.qwencloud.com/api-reference/image-generation/wan26-image-gen-edit, and wan27-… beside it
    Qwen-Image            alibabacloud.com/help/en/model-studio/qwen-image-api;
        docs.qwencloud.com/api-reference/image-generation/qwen-image-editing
Models without a task API return the images immediately. An input image may be a ``data:`` URL. Output images are URLs
that are valid for one day. Errors: .../help/en/model-studio/error-code.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse, ProviderError, ProviderRateLimited, ProviderRejected
from gateway.formats.errors.content_filter import build_block, is_block
from gateway.formats.errors.openai import Secrets, make_credentials_error, mask, write_reason
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.params import check_size
from gateway.formats.images.task import (
    ImageTask,
    build_images,
    check_expressible,
    check_format,
    parse_field,
    parse_image,
    parse_sides,
    parse_state,
)
from gateway.formats.wire.json_values import as_object, as_text, list_objects
from gateway.formats.wire.request_body import Body, build_data_url
from gateway.frozen import frozen

TASKS_PATH = "/api/v1/tasks"
_SERVICES_PATH = "/api/v1/services/aigc"
_TASK_HEADER = ("X-DashScope-Async", "enable")
_FIRST_WAIT_S = 1.0
_OPEN_STATES = ("PENDING", "RUNNING")
_FINAL_STATES = ("SUCCEEDED", "FAILED", "CANCELED", "UNKNOWN")
_OUTPUT_FORMATS = ("png",)
_PARAMETER_NAMES = ("negative_prompt", "prompt_extend", "watermark", "seed", "thinking_mode")
"""Vendor fields that a client may set in addition to the OpenAI API format. None changes the number of images."""
ACCOUNT_ERROR_CODES = ("InvalidApiKey", "AccessDenied", "Arrearage", "AllocationQuota", "Workspace.AccessDenied")
"""Prefixes of error codes about the key or its account."""
_CLIENT_ERROR_CODES = ("InvalidParameter", "InvalidURL", "BadRequest")
_RATE_LIMIT_STATUS = 429


@frozen
class _CallMode:
    """The request form of a group of models.

    Attributes:
        creates_task: whether the answer is a task; otherwise the answer contains the images.
        uses_messages: whether prompt and images are parts of a message; otherwise they are fields.
        takes_image: whether an input image is accepted.
        needs_image: whether an input image is required.
        negative_prompt_object: the object that contains ``negative_prompt``.
        function: the operation, for an editing model with several operations.
    """

    path: str
    creates_task: bool = True
    uses_messages: bool = False
    takes_image: bool = True
    needs_image: bool = False
    negative_prompt_object: str = "parameters"
    function: str | None = None


_FIELDS_MODE = _CallMode(
    f"{_SERVICES_PATH}/text2image/image-synthesis", takes_image=False, negative_prompt_object="input"
)
_MESSAGE_MODE = _CallMode(f"{_SERVICES_PATH}/image-generation/generation", uses_messages=True)
_DIRECT_MODE = _CallMode(f"{_SERVICES_PATH}/multimodal-generation/generation", uses_messages=True, creates_task=False)
_EDITOR_MODE = _CallMode(
    f"{_SERVICES_PATH}/image2image/image-synthesis", needs_image=True, negative_prompt_object="input"
)
_CALL_MODES: Mapping[str, _CallMode] = {
    "wanx2.1-imageedit": attrs.evolve(_EDITOR_MODE, function="description_edit"),
    "wan2.5-i2i*": _EDITOR_MODE,
    "wan2.[125]-t2i*": _FIELDS_MODE,
    "wanx*-t2i*": _FIELDS_MODE,
    "wan*-t2i*": attrs.evolve(_MESSAGE_MODE, takes_image=False),
    "wan2.6-image*": attrs.evolve(_MESSAGE_MODE, needs_image=True),
    "wan*-image*": _MESSAGE_MODE,
    "qwen-image": attrs.evolve(_FIELDS_MODE, negative_prompt_object="parameters"),
    "qwen-image-plus": attrs.evolve(_FIELDS_MODE, negative_prompt_object="parameters"),
    "qwen-image-edit*": attrs.evolve(_DIRECT_MODE, needs_image=True),
}
"""Call modes by globs of model names; the first match counts. Other models are called like all new ones, with a message
and without a task.
"""


def _find_call_mode(model: str) -> _CallMode:
    return next(
        (mode for model_pattern, mode in _CALL_MODES.items() if fnmatchcase(model, model_pattern)), _DIRECT_MODE
    )


class DashScopeImageBackend(ImageBackend):
    """Images from DashScope. Paths are below the server's root."""

    __slots__ = ("_count", "_image_request", "_inference", "_mode", "_model", "_task")

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, _capability: Capability) -> None:
        self._inference = inference
        self._image_request = inference.image or ImageRequest("")
        self._model = model
        self._mode = _find_call_mode(model)
        self._task = ImageTask(TASKS_PATH, _FIRST_WAIT_S)
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        mode = self._mode
        check_expressible(self._inference, takes_image=mode.takes_image, needs_image=mode.needs_image)
        check_format(self._inference.body.get("output_format"), _OUTPUT_FORMATS)
        check_size(self._inference.body)
        self._count = count
        body: Body = {"model": self._model, "input": self._build_input(), "parameters": self._build_parameters()}
        for name in _PARAMETER_NAMES:
            if self._inference.body.get(name) is not None:
                value = self._inference.body[name]
                body[mode.negative_prompt_object if name == "negative_prompt" else "parameters"][name] = (
                    value if name == "negative_prompt" else parse_field(value)
                )
        return ProviderRequest(
            body, path=mode.path, starts_task=mode.creates_task, headers=(_TASK_HEADER,) if mode.creates_task else ()
        )

    def _build_input(self) -> Body:
        mode = self._mode
        images = [build_data_url(file) for file in self._inference.files if file.field == "image"]
        prompt = self._image_request.prompt
        if mode.uses_messages:
            content = [*({"image": image} for image in images), {"text": prompt}]
            return {"messages": [{"role": "user", "content": content}]}
        if mode.function is not None:
            return {"function": mode.function, "prompt": prompt, "base_image_url": images[0]}
        return {"prompt": prompt, "images": images} if images else {"prompt": prompt}

    def _build_parameters(self) -> Body:
        parameters: Body = {}
        if self._image_request.size is not None:
            parameters["size"] = "{}*{}".format(*parse_sides(self._image_request.size))
        if self._mode.creates_task or self._count > 1:  # the default of ``n`` is four for tasks, one otherwise
            parameters["n"] = self._count
        return parameters

    def read(self, raw: bytes, secrets: Secrets) -> Images | ProviderRequest:
        value = self._task.parse_object(raw)
        if value is None:
            return self._task.build_poll_request()
        output = as_object(value.get("output"))
        state = output.get("task_status")
        self._task.ended = state in _FINAL_STATES
        if state in _OPEN_STATES:
            return self._task.follow(output.get("task_id"))
        if state == "FAILED" or _has_code(value):
            raise _find_error(output if state == "FAILED" else value, secrets)
        if state is not None and state != "SUCCEEDED":
            raise ProviderBadResponse(f"The provider's task is {parse_state(state, secrets)}")
        return build_images(list(_parse_images(output, secrets)), self._count)

    def build_cancel_request(self) -> ProviderRequest | None:
        return self._task.build_cancel_request()


def _parse_images(output: Body, secrets: Secrets) -> Iterator[Image]:
    """Yield the images of an answer, which are in ``results`` or in the messages of ``choices``.

    Raises ``ProviderError`` if an image failed, because the client requested all of them.
    """
    for result in list_objects(output.get("results")):
        if _has_code(result):
            raise _find_error(result, secrets)
        prompt = result.get("actual_prompt")
        image = parse_image(result.get("url"))
        yield attrs.evolve(image, revised_prompt=prompt) if isinstance(prompt, str) else image
    for choice in list_objects(output.get("choices")):
        for part in list_objects(as_object(choice.get("message")).get("content")):
            if "image" in part:
                yield parse_image(part["image"])


def _has_code(value: Body) -> bool:
    return bool(as_text(value.get("code")))


def _find_error(value: Body, secrets: Secrets) -> ProviderError:
    code = as_text(value.get("code"))
    message = write_reason(value.get("message"), None, secrets)
    if is_block(code, message):
        return build_block(message, secrets)
    if code.startswith("Throttling"):
        rate_error = ProviderRateLimited(message, status=_RATE_LIMIT_STATUS, code=mask(code, secrets)[:100])
        rate_error.retry_after_s = 1
        return rate_error
    if code.startswith(_CLIENT_ERROR_CODES):
        return ProviderRejected(message, status=400, code=mask(code, secrets)[:100])
    if code.startswith(ACCOUNT_ERROR_CODES):
        return make_credentials_error(mask(code, secrets)[:100], message)
    return ProviderBadResponse(f"The provider failed: {write_reason(value.get('message'), code, secrets)}")
