"""Write a model's summary of a conversation as a compaction item; see ``compaction.py``.

``open_writer`` and ``build_answer`` also serve responses without a summary.
"""

from collections.abc import Iterable
from io import StringIO

import attrs

from gateway.domain import exact_json
from gateway.domain.inference_request import InferenceRequest
from gateway.errors import ProviderBadResponse
from gateway.formats.chat import model as chat
from gateway.formats.chat.responses.compact_call import COMPACTION_OBJECT
from gateway.formats.chat.responses.compaction import build_content, is_user_message
from gateway.formats.chat.responses.response_writer import Body, ResponseStreamSerializer, build_usage
from gateway.formats.translator import ResponseIdentity


class CompactionSerializer(ResponseStreamSerializer):
    """Writes one compaction item at the end of the answer. Raises ``ProviderBadResponse`` if the answer has no text."""

    __slots__ = ("_messages", "_summary")

    def __init__(self, inference: InferenceRequest, identity: ResponseIdentity) -> None:
        super().__init__(inference, identity)
        self._summary = StringIO()
        self._messages = (
            None if inference.compaction == "item" else list(filter(is_user_message, inference.body["input"]))
        )

    def _add_content(self, event: chat.Event) -> bytes:
        if isinstance(event, chat.TextDelta):
            self._count_chars(event.text)
            self._summary.write(event.text)
        return b""

    def _close_output(self, status: str) -> bytes:  # noqa: ARG002 - an item of this kind has none
        if self._output:
            return b""
        summary = self._summary.getvalue().strip()
        if not summary:
            raise ProviderBadResponse("The model gave no summary of the conversation", phase="stream")
        item, start_events = self._start_item({"type": "compaction", "encrypted_content": build_content(summary)})
        return start_events + self._finish_item(item)

    def build_response(self) -> bytes:
        """Return the whole response. For ``/responses/compact`` its output is the user messages and the summary."""
        if self._messages is None:
            return super().build_response()
        messages = [
            _build_complete_item(item, f"msg_{self._answer_id}_{index}") for index, item in enumerate(self._messages, 1)
        ]
        return exact_json.dumps(
            {
                "id": f"resp_{self._answer_id}",
                "object": COMPACTION_OBJECT,
                "created_at": self._now_s,
                "output": [*messages, *self._output],
                "usage": None if self._report is None else build_usage(self._report),
            }
        )


def _build_complete_item(item: Body, item_id: str) -> Body:
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"type": "message", "id": item_id, "status": "completed", **item, "content": parts}


def open_writer(inference: InferenceRequest, identity: ResponseIdentity) -> ResponseStreamSerializer:
    """Return the writer for a response, or for a summary if the request asks for one."""
    return (
        CompactionSerializer(inference, identity)
        if inference.compaction
        else ResponseStreamSerializer(inference, identity)
    )


def build_answer(events: Iterable[chat.Event], inference: InferenceRequest, identity: ResponseIdentity) -> bytes:
    """Build a whole response, and pass it to ``inference.keep`` if set.

    Raises the error of a ``StreamError``, and ``ProviderBadResponse`` if a summary was requested and there is none.
    """
    # With ``keep``, the writer would keep the response at the end of its stream, too, perhaps without its usage.
    writer = open_writer(attrs.evolve(inference, keep=None), identity)
    for event in events:
        if isinstance(event, chat.StreamError):
            raise event.error
        writer.write(event)
    response = writer.build_response()
    if inference.keep is not None:
        inference.keep(response)
    return response
