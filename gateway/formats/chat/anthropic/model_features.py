"""The features of each Claude version, and the fields for reasoning and sampling that follow from them.

Sources: Anthropic's documentation, "Thinking", "Extended thinking", "Effort", "Structured outputs", the pages "What's
new" of Opus 5.5 and Sonnet 5.5 and the migration guides, as of November 2026. The rules depend on the version instead
of a list of names: a future model gets the newest rules instead of a 400. Other vendors' models with this API (a name
without "claude") support the older forms.
"""

import re
from typing import Any, Literal

from gateway.formats.chat.model import EFFORT_TOKENS, ChatRequest, Effort
from gateway.frozen import frozen

DEFAULT_MAX_TOKENS = 8_192
"""``max_tokens`` if the client sets none. The API requires a number, and every available model allows this many.
Reasoning counts towards ``max_tokens``, so tokens for reasoning are added if the model thinks.
"""
MIN_BUDGET_TOKENS = 1_024
_MAX_OUTPUT_TOKENS = 64_000
"""Maximum output tokens of the newest models with a token budget for reasoning."""
_MIN_TOP_P = 0.95
"""Lowest ``top_p`` that is allowed together with reasoning."""

_FAMILY_PATTERN = re.compile(r"opus|sonnet|haiku|fable|mythos")
# claude-opus-4-6, claude-3-7-sonnet-20250219, anthropic/claude-4.6-opus, anthropic.claude-opus-4-6-v1:0
_VERSION_PATTERN = re.compile(r"(?<!\d)(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")


@frozen
class ClaudeFeatures:
    """The features of a model, derived from its name.

    Attributes:
        is_claude: whether the model is one of Anthropic's.
        family: opus, sonnet, haiku, fable or mythos; None if the name has no family.
        version: major and minor version; None if the name has none (aliases, previews). A Claude model without a
            version counts as the newest.
    """

    is_claude: bool = False
    family: str | None = None
    version: tuple[int, int] | None = None

    def _is_at_least(self, major: int, minor: int) -> bool:
        return self.is_claude and (self.version is None or self.version >= (major, minor))

    @property
    def thinks_adaptively(self) -> bool:
        return self._is_at_least(4, 6)

    @property
    def takes_budget(self) -> bool:
        """Whether the model takes a token budget for reasoning; Claude 4.6 is the last version that does."""
        return not self._is_at_least(4, 7)

    @property
    def thinks_by_default(self) -> bool:
        return self._is_at_least(5, 0)

    @property
    def takes_sampling(self) -> bool:
        """Whether the model takes ``temperature``, ``top_p`` and ``top_k``; since 4.7 only defaults are accepted."""
        return not self._is_at_least(4, 7)

    @property
    def excludes_top_p(self) -> bool:
        return self._is_at_least(4, 0)

    @property
    def takes_prefill(self) -> bool:
        return not self._is_at_least(4, 6)

    @property
    def takes_system_messages(self) -> bool:
        """Whether the model accepts system messages after the first message; older models answer 400."""
        return self._is_at_least(4, 8)

    @property
    def takes_schema(self) -> bool:
        """Whether the model supports structured outputs: ``output_config.format`` and strict tools."""
        return self._is_at_least(4, 5)

    @property
    def allows_forced_tool(self) -> bool:
        first_unsupported_version = {"opus": (5, 5), "sonnet": (5, 5), "fable": (5, 1), "mythos": (5, 1)}.get(
            self.family or ""
        )
        return first_unsupported_version is None or self.version is None or self.version < first_unsupported_version

    @property
    def thinks_when_forced(self) -> bool:
        """Whether the model may think before a forced tool call: since 4.8 (langchain-aws, pull request 1141)."""
        return self._is_at_least(4, 8)

    @property
    def off_type(self) -> Literal["disabled", "between_tools"] | None:
        """The ``thinking.type`` that forbids reasoning; None if no type does, and the lowest effort is used instead."""
        if not self.is_claude:
            return "disabled"
        if self.version is None or self.family in {"fable", "mythos"}:
            return None
        if self.version <= (5, 0) or (self.family, self.version) == ("haiku", (5, 5)):
            return "disabled"
        return "between_tools" if self.family == "sonnet" else None


def parse_claude_features(model: str) -> ClaudeFeatures:
    """Return the features of a model from a provider's model name, in any of the usual spellings."""
    _, vendor_mark, version_text = model.lower().partition("claude")
    if not vendor_mark:
        return ClaudeFeatures()
    family, version = _FAMILY_PATTERN.search(version_text), _VERSION_PATTERN.search(version_text)
    return ClaudeFeatures(
        is_claude=True,
        family=family.group() if family else None,
        version=(int(version.group(1)), int(version.group(2) or 0)) if version else None,
    )


def build_thinking(request: ChatRequest, features: ClaudeFeatures, *, may_budget: bool) -> dict[str, Any]:
    """Build ``max_tokens``, and ``thinking`` and ``output_config`` if reasoning was requested or forbidden.

    The client's ``max_tokens`` limits its costs and never changes. A reasoning budget is lowered until it leaves a
    fifth of ``max_tokens`` for the answer; below the minimum budget, reasoning is dropped. ``may_budget`` is false if
    the API would reject a budget because of the request's tool choice or messages. An unsupported option becomes the
    nearest supported one.
    """
    thinking_tokens, effort = request.thinking_tokens, request.effort
    if thinking_tokens == 0 or effort == "none":
        return _build_disabled(request.max_tokens, features)
    if thinking_tokens is None and effort is None:
        reasoning_tokens = EFFORT_TOKENS["high"] if features.thinks_by_default else 0
        return {"max_tokens": request.max_tokens or DEFAULT_MAX_TOKENS + reasoning_tokens}
    if features.thinks_adaptively and not (features.takes_budget and effort is None and may_budget):
        return _build_effort(effort or _find_effort(thinking_tokens or 0), request.max_tokens, features)
    budget = thinking_tokens if thinking_tokens is not None else EFFORT_TOKENS[effort or "high"]
    return _build_budget(budget, request.max_tokens, may_budget=may_budget)


def _build_disabled(max_tokens: int | None, features: ClaudeFeatures) -> dict[str, Any]:
    if features.off_type is None:
        reasoning_tokens = EFFORT_TOKENS["low"]
        return {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS + reasoning_tokens, "output_config": {"effort": "low"}}
    return {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS, "thinking": {"type": features.off_type}}


def _build_budget(budget: int, max_tokens: int | None, *, may_budget: bool) -> dict[str, Any]:
    budget = max(budget, MIN_BUDGET_TOKENS)
    if max_tokens is None:
        budget = min(budget, _MAX_OUTPUT_TOKENS - DEFAULT_MAX_TOKENS)
        max_tokens = budget + DEFAULT_MAX_TOKENS
    budget = min(budget, max_tokens - max_tokens // 5)
    if budget < MIN_BUDGET_TOKENS or not may_budget:
        return {"max_tokens": max_tokens}
    return {"max_tokens": max_tokens, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _build_effort(effort: Effort, max_tokens: int | None, features: ClaudeFeatures) -> dict[str, Any]:
    """Build adaptive reasoning. Since 4.7 an answer omits the reasoning text unless ``display`` requests it."""
    if effort == "minimal":
        effort = "low"
    if effort == "xhigh" and features.version == (4, 6):  # 4.6 supports all other efforts
        effort = "high"
    return {
        "max_tokens": max_tokens or DEFAULT_MAX_TOKENS + EFFORT_TOKENS[effort],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": effort},
    }


def _find_effort(tokens: int) -> Effort:
    """Return the highest effort with a budget of at most ``tokens``; "low" if there is none."""
    highest: Effort = "low"
    efforts: tuple[Effort, ...] = ("medium", "high", "xhigh", "max")
    for effort in efforts:
        if EFFORT_TOKENS[effort] <= tokens:
            highest = effort
    return highest


def build_sampling(request: ChatRequest, features: ClaudeFeatures, *, thinks: bool) -> dict[str, Any]:
    """Build ``temperature`` (at most 1), ``top_p`` and ``top_k``, as far as the model supports them.

    If the model ``thinks``, only a ``top_p`` of at least 0.95 is permitted.
    """
    if not features.takes_sampling:
        return {}
    temperature, top_p = request.temperature, request.top_p
    if thinks:
        return {"top_p": top_p} if top_p is not None and top_p >= _MIN_TOP_P else {}
    if temperature is not None and features.excludes_top_p:
        top_p = None
    sampling = {
        "temperature": None if temperature is None else min(max(temperature, 0.0), 1.0),
        "top_p": top_p,
        "top_k": request.top_k,
    }
    return {name: value for name, value in sampling.items() if value is not None}
