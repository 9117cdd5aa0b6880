"""Log probabilities of tokens in Gemini's format (ai.google.dev/api/generate-content, ``LogprobsResult``)."""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any

from gateway.formats.chat.model import TokenLogprob
from gateway.formats.wire.json_values import as_object, list_objects

_IMPOSSIBLE = -9999.0
"""The OpenAI API's log probability of a nearly impossible token, for which Google writes ``"-Infinity"``."""


def parse_logprobs(value: object) -> tuple[TokenLogprob, ...]:
    """Parse the ``logprobsResult`` of a candidate; empty if missing or not as documented."""
    result = as_object(value)
    chosen, steps = list_objects(result.get("chosenCandidates")), list_objects(result.get("topCandidates"))
    tokens = []
    nothing: dict[str, Any] = {}
    for one, step in zip_longest(chosen, steps[: len(chosen)], fillvalue=nothing):
        top = [_parse_token(candidate) for candidate in list_objects(step.get("candidates"))]
        token = _parse_token(one)
        if token is not None:
            tokens.append(TokenLogprob(token.token, token.logprob, tuple(each for each in top if each is not None)))
    return tuple(tokens)


def _parse_token(value: dict[str, Any]) -> TokenLogprob | None:
    # Protocol Buffers omit default values: a log probability of 0 (a probability of 1), and an empty token.
    token, logprob = value.get("token", ""), value.get("logProbability", 0)
    if logprob == "-Infinity":
        logprob = _IMPOSSIBLE
    return TokenLogprob(token, logprob) if isinstance(token, str) and isinstance(logprob, int | float) else None


def build_logprobs(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Build a ``logprobsResult`` without token ids, because no other format has them."""
    tokens = tuple(tokens)
    return {
        "topCandidates": [{"candidates": [_build_token(candidate) for candidate in one.top]} for one in tokens],
        "chosenCandidates": [_build_token(one) for one in tokens],
    }


def _build_token(one: TokenLogprob) -> dict[str, Any]:
    return {"token": one.token, "logProbability": one.logprob}
