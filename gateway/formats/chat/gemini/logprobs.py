"""Log probabilities of tokens in Gemini's format (ai.google.dev/api/generate-content, ``LogprobsResult``)."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from gateway.formats.chat.model import TokenLogprob
from gateway.formats.wire.json_values import as_object, list_objects

_IMPOSSIBLE_LOGPROB = -9999.0
"""The OpenAI API's log probability of a nearly impossible token, for which Google writes ``"-Infinity"``."""


def parse_logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Parse the ``logprobsResult`` of a candidate; empty if missing or not as documented."""
    logprobs = as_object(value)
    candidates, steps = list_objects(logprobs.get("chosenCandidates")), list_objects(logprobs.get("topCandidates"))
    tokens = []
    empty_candidate: dict[str, Any] = {}
    for candidate, alternatives_field in zip_longest(candidates, steps[: len(candidates)], fillvalue=empty_candidate):
        alternatives = [_parse_token(field) for field in list_objects(alternatives_field.get("candidates"))]
        token = _parse_token(candidate)
        if token is not None:
            tokens.append(
                TokenLogprob(
                    token.token,
                    token.logprob,
                    tuple(alternative for alternative in alternatives if alternative is not None),
                )
            )
    return tuple(tokens)


def _parse_token(value: dict[str, Any]) -> TokenLogprob | None:
    # Protocol Buffers omit default values: a log probability of 0 (a probability of 1), and an empty token.
    token, logprob = value.get("token", ""), value.get("logProbability", 0)
    if logprob == "-Infinity":
        logprob = _IMPOSSIBLE_LOGPROB
    return TokenLogprob(token, logprob) if isinstance(token, str) and isinstance(logprob, int | float) else None


def build_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Build a ``logprobsResult`` without token ids, because no other format has them."""
    tokens = tuple(tokens)
    return {
        "topCandidates": [
            {"candidates": [_build_token(candidate) for candidate in token.alternatives]} for token in tokens
        ],
        "chosenCandidates": [_build_token(token) for token in tokens],
    }


def _build_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logProbability": token.logprob}
