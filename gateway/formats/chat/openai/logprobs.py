"""Log probabilities in the OpenAI API format: ``ChatCompletionTokenLogprob`` of OpenAI's OpenAPI document."""

from collections.abc import Iterable
from math import isfinite
from typing import Any

from gateway.formats.chat.model import TokenLogprob
from gateway.formats.wire.json_values import as_object, list_objects

_MIN_LOGPROB = -9999.0
"""The log probability that OpenAI reports for a very unlikely token."""


def parse_logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Parse the ``logprobs`` of a choice; empty if missing or not as documented."""
    tokens = []
    for item in list_objects(as_object(value).get("content")):
        candidates = [_parse_token(candidate) for candidate in list_objects(item.get("top_logprobs"))]
        token = _parse_token(item, tuple(alternative for alternative in candidates if alternative is not None))
        if token is not None:
            tokens.append(token)
    return tuple(tokens)


def _parse_token(value: dict[str, Any], alternatives: tuple[TokenLogprob, ...] = ()) -> TokenLogprob | None:
    token, logprob = value.get("token"), value.get("logprob")
    if isinstance(logprob, float) and not isfinite(logprob):  # JSON cannot represent infinity or NaN
        logprob = _MIN_LOGPROB
    return (
        TokenLogprob(token, logprob, alternatives)
        if isinstance(token, str) and isinstance(logprob, int | float)
        else None
    )


def build_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Build the ``logprobs`` of a choice."""
    content = [
        _build_token(token) | {"top_logprobs": [_build_token(candidate) for candidate in token.alternatives]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _build_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.token.encode())}
