"""Mistral AI. docs.mistral.ai/api: chat, embeddings, moderations, models.

It rejects unknown fields (422, ``extra_forbidden``) in a request and in its messages; the known ones are those of
ChatCompletionRequest and EmbeddingRequest in that reference. Ids of tool calls have nine letters and digits
(mistralai/mistral-common, protocol/instruct/validator.py). Fill in the middle (``/fim/completions``) is not supported.
Transcripts ("Audio Transcriptions" of the same reference, docs.mistral.ai/studio/audio/overview) stream in another
event format, so they are requested unstreamed; its speech answers in JSON and is not supported.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, MODERATIONS, TRANSCRIPTIONS, Body, Endpoint, Provider
from gateway.providers.efforts import EffortsByModel, fit_effort
from gateway.providers.message_order import fit_turns, mark_prefix
from gateway.providers.quirks import (
    LITELLM_FIELDS,
    developer_as_system,
    drop,
    drop_empty,
    drop_from_calls,
    drop_from_messages,
    fit_call_ids,
    limit_as_max_tokens,
    rename,
)

_UNSUPPORTED_FIELDS = (
    "stream_options", "user", "safety_identifier", "logit_bias", "store", "verbosity", "prompt_cache_retention",
    "prompt_cache_options",
)  # fmt: skip
_EFFORTS: EffortsByModel = (
    (r"mistral-small-(latest|2603|2[6-9]1\d)|mistral-medium-3-5.*|mistral-medium-latest", ("none", "high")),
    (r".*", ()),
)
"""docs.mistral.ai/capabilities/reasoning/adjustable: other models do not know the field."""
_CHAT_QUIRKS = (
    limit_as_max_tokens,
    fit_effort(*_EFFORTS),
    rename("seed", "random_seed"),
    drop(*_UNSUPPORTED_FIELDS),
    drop_empty("logprobs", "top_logprobs", "functions", "function_call", "modalities", "audio", "web_search_options"),
    developer_as_system,
    drop_from_messages("name", roles=("system", "user", "assistant")),
    drop_from_messages("refusal", "annotations", "audio", "function_call", "reasoning_content", "reasoning"),
    drop_from_messages("reasoning_details", "images", *LITELLM_FIELDS, roles=("assistant",)),
    drop_from_calls("extra_content", "cache_control", LITELLM_FIELDS[0]),
    fit_call_ids("[A-Za-z0-9]{9}", 9),
    fit_turns,
    mark_prefix,
)
_TRANSCRIPTION_FIELDS = frozenset(
    {"model", "language", "temperature", "timestamp_granularities", "diarize", "context_bias"}
)
_TIMED_FORMATS = ("srt", "vtt", "verbose_json", "diarized_json")


def _shape_transcription(fields: Body, _model: str) -> None:
    """Drop unknown fields. If times are requested, set the granularity that they require, and drop the language.

    Mistral does not allow a language together with times.
    """
    granularities = fields.pop("timestamp_granularities", None)
    has_times = granularities or fields.get("response_format") in _TIMED_FORMATS
    for name in fields.keys() - _TRANSCRIPTION_FIELDS:
        del fields[name]
    if has_times:
        fields["timestamp_granularities"] = "word" if granularities in ("word", ["word"]) else "segment"
        fields.pop("language", None)


MISTRAL = Provider(
    slug="mistral",
    title="Mistral AI",
    base_url="https://api.mistral.ai/v1",
    env_key="MISTRAL_API_KEY",
    endpoints=(
        Endpoint("openai_chat", CHAT.path, quirks=_CHAT_QUIRKS),
        Endpoint("openai_embeddings", EMBEDDINGS.path, quirks=(rename("dimensions", "output_dimension"), drop("user"))),
        MODERATIONS,
        Endpoint("openai_transcriptions", TRANSCRIPTIONS.path, quirks=(_shape_transcription,)),
    ),
)
