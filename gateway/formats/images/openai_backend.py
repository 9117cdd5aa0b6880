"""Images from providers that use the OpenAI API format: unstreamed answers to generations and to edits."""

import attrs

from gateway.domain.capability import Capability
from gateway.domain.image import ImageForm, Images
from gateway.domain.inference_request import InferenceRequest
from gateway.domain.operation import OPERATIONS
from gateway.formats.errors.openai import Secrets
from gateway.formats.images.backend import ImageBackend, ProviderRequest
from gateway.formats.images.openai import build_edits_form, build_images_body, parse_images_answer
from gateway.formats.wire.fields import Body
from gateway.formats.wire.request_body import Form


class OpenAiImageBackend(ImageBackend):
    """Images from one request, sent as JSON or, for an edit, as a form."""

    def __init__(self, inference: InferenceRequest, model: str, _boundary_mark: str, capability: Capability) -> None:
        self._inference = inference
        self._model = model
        self._form = _choose_form(inference, capability)
        self._needs_shape = capability.sizes == ()
        self._count = 1

    def begin(self, count: int) -> ProviderRequest:
        """Return the only request. ``n`` is omitted if ``count`` is 1 and the client did not set it.

        Raises ``InvalidRequest`` for a field that sets the size under another name.
        """
        self._count = count
        if OPERATIONS[self._inference.operation].edits:
            form = build_edits_form(self._inference, self._model, needs_shape=self._needs_shape)
            return ProviderRequest(Form(self._finish_body(form.fields), form.files))
        return ProviderRequest(
            self._finish_body(build_images_body(self._inference, self._model, needs_shape=self._needs_shape))
        )

    def _finish_body(self, body: Body) -> Body:
        count = body.pop("n", None)
        for name in ("stream", "partial_images"):
            body.pop(name, None)
        if self._count > 1 or count is not None:
            body["n"] = self._count
        if self._form is not None:
            body["response_format"] = self._form
        return body

    def read(self, raw: bytes, secrets: Secrets) -> Images:
        images = parse_images_answer(raw, self._inference, secrets)
        items = images.items[: self._count]
        return attrs.evolve(images, items=items, usage=attrs.evolve(images.usage, images=len(items)))


def _choose_form(inference: InferenceRequest, capability: Capability) -> ImageForm | None:
    """Return the ``response_format`` to send, preferably the client's; None to omit the field."""
    answer_form: ImageForm = "b64_json" if inference.stream or inference.image is None else inference.image.form
    formats = capability.response_formats
    if formats is None:
        return answer_form if inference.body.get("response_format") is not None else None
    return answer_form if answer_form in formats else next(iter(formats), None)
