"""What each generation of Claude accepts: how it is told to think, and which dials it still has.

Facts: Anthropic's documentation, "Thinking", "Extended thinking", "Effort", "Structured outputs", the pages "What's
new" of Opus 5.5 and Sonnet 5.5 and the migration guides, as of November 2026. The rules are by version, not by a list
of names, so that a model of tomorrow is met with the newest rules rather than with a 400. Other vendors that speak this
language (a name without "claude") know the older forms.
"""

import re
from typing import Any, Literal

import attrs

from gateway.formats.chat import EFFORT_TOKENS, ChatRequest, Effort

DEFAULT_MAX_TOKENS = 8_192
"""Tokens of an answer where the caller said nothing: the API asks for a number, and no model that is still served takes
less. What a model thinks comes out of the same number, so room for it is added where it does."""
MIN_BUDGET = 1_024
_MAX_OUTPUT = 64_000
"""The most of the last models that count thinking in tokens."""
_LEAST_TOP_P = 0.95
"""With thinking on, ``top_p`` may be from here to 1."""

_FAMILY = re.compile(r"opus|sonnet|haiku|fable|mythos")
# claude-opus-4-6, claude-3-7-sonnet-20250219, anthropic/claude-4.6-opus, anthropic.claude-opus-4-6-v1:0
_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")


@attrs.frozen
class ClaudeFeatures:
    """A model by its name.

    Attributes:
        claude: whether it is one of Anthropic's at all.
        family: opus, sonnet, haiku, fable or mythos; None where the name says none.
        version: None where the name says none, as with aliases and previews: it counts as the newest.
    """

    claude: bool = False
    family: str | None = None
    version: tuple[int, int] | None = None

    def _since(self, major: int, minor: int) -> bool:
        return self.claude and (self.version is None or self.version >= (major, minor))

    @property
    def adapts(self) -> bool:
        """Whether it decides itself how much to think, and is told how hard (``effort``)."""
        return self._since(4, 6)

    @property
    def budgets(self) -> bool:
        """Whether it takes a number of tokens to think with; 4.6 is the last that does."""
        return not self._since(4, 7)

    @property
    def thinks_unasked(self) -> bool:
        """Whether it thinks where nothing is said."""
        return self._since(5, 0)

    @property
    def samples(self) -> bool:
        """Whether it takes ``temperature``, ``top_p`` and ``top_k``; since 4.7 any but the default is refused."""
        return not self._since(4, 7)

    @property
    def takes_one_dial(self) -> bool:
        """Whether ``temperature`` and ``top_p`` exclude each other."""
        return self._since(4, 0)

    @property
    def prefills(self) -> bool:
        """Whether it continues an assistant's message that stands last."""
        return not self._since(4, 6)

    @property
    def structures(self) -> bool:
        """Whether it keeps to a schema: ``output_config.format`` and strict tools."""
        return self._since(4, 5)

    @property
    def forces(self) -> bool:
        """Whether it can be made to use a tool."""
        since = {"opus": (5, 5), "sonnet": (5, 5), "fable": (5, 1), "mythos": (5, 1)}.get(self.family or "")
        return since is None or self.version is None or self.version < since

    @property
    def off(self) -> Literal["disabled", "between_tools"] | None:
        """The word that forbids thinking; None where there is none, and the lowest effort is the nearest to it."""
        if not self.claude:
            return "disabled"
        if self.version is None or self.family in {"fable", "mythos"}:
            return None
        if self.version <= (5, 0) or (self.family, self.version) == ("haiku", (5, 5)):
            return "disabled"
        return "between_tools" if self.family == "sonnet" else None


def parse_generation(model: str) -> ClaudeFeatures:
    """The generation a provider's name of a model speaks of, in any of the usual spellings."""
    _, claude, rest = model.lower().partition("claude")
    if not claude:
        return ClaudeFeatures()
    family, version = _FAMILY.search(rest), _VERSION.search(rest)
    return ClaudeFeatures(
        claude=True,
        family=family.group() if family else None,
        version=(int(version.group(1)), int(version.group(2) or 0)) if version else None,
    )


def build_thinking(conversation: ChatRequest, generation: ClaudeFeatures, *, may_budget: bool) -> dict[str, Any]:
    """``max_tokens``, and ``thinking`` and ``output_config`` where thinking was asked for or forbidden.

    The caller's ``max_tokens`` is a promise about the bill and stays: where a budget does not fit under it with a fifth
    left for the answer, the budget shrinks, and below the least there is no thinking. ``may_budget`` is false where a
    model that counts in tokens may not think in this turn. A wish that a model has no word for becomes the nearest.
    """
    tokens, effort = conversation.thinking_tokens, conversation.effort
    if tokens == 0 or effort == "none":
        return _build_off(conversation.max_tokens, generation)
    if tokens is None and effort is None:
        room = EFFORT_TOKENS["high"] if generation.thinks_unasked else 0
        return {"max_tokens": conversation.max_tokens or DEFAULT_MAX_TOKENS + room}
    if generation.adapts and not (generation.budgets and effort is None and may_budget):
        return _build_effort(effort or _find_effort(tokens or 0), conversation.max_tokens, generation)
    budget = tokens if tokens is not None else EFFORT_TOKENS[effort or "high"]
    return _build_budget(budget, conversation.max_tokens, may_budget=may_budget)


def _build_off(max_tokens: int | None, generation: ClaudeFeatures) -> dict[str, Any]:
    if generation.off is None:
        room = EFFORT_TOKENS["low"]
        return {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS + room, "output_config": {"effort": "low"}}
    return {"max_tokens": max_tokens or DEFAULT_MAX_TOKENS, "thinking": {"type": generation.off}}


def _build_budget(budget: int, max_tokens: int | None, *, may_budget: bool) -> dict[str, Any]:
    budget = max(budget, MIN_BUDGET)
    if max_tokens is None:
        budget = min(budget, _MAX_OUTPUT - DEFAULT_MAX_TOKENS)
        max_tokens = budget + DEFAULT_MAX_TOKENS
    budget = min(budget, max_tokens - max_tokens // 5)
    if budget < MIN_BUDGET or not may_budget:
        return {"max_tokens": max_tokens}
    return {"max_tokens": max_tokens, "thinking": {"type": "enabled", "budget_tokens": budget}}


def _build_effort(effort: Effort, max_tokens: int | None, generation: ClaudeFeatures) -> dict[str, Any]:
    """Adaptive thinking. Since 4.7 a thought comes without its text unless ``display`` asks for it."""
    if effort == "minimal":
        effort = "low"
    if effort == "xhigh" and generation.version == (4, 6):  # which knows all the others
        effort = "high"
    return {
        "max_tokens": max_tokens or DEFAULT_MAX_TOKENS + EFFORT_TOKENS[effort],
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": effort},
    }


def _find_effort(tokens: int) -> Effort:
    """The highest effort that comes to no more than ``tokens``, at least the lowest there is."""
    found: Effort = "low"
    steps: tuple[Effort, ...] = ("medium", "high", "xhigh", "max")
    for effort in steps:
        if EFFORT_TOKENS[effort] <= tokens:
            found = effort
    return found


def build_dials(conversation: ChatRequest, generation: ClaudeFeatures, *, thinks: bool) -> dict[str, Any]:
    """``temperature``, ``top_p`` and ``top_k``, as far as the model takes them; the rest is dropped.

    The convention's temperature goes to 2 and is cut at 1, as Anthropic's own layer for that convention does it.
    """
    if not generation.samples:
        return {}
    temperature, top_p = conversation.temperature, conversation.top_p
    if thinks:
        return {"top_p": top_p} if top_p is not None and top_p >= _LEAST_TOP_P else {}
    if temperature is not None and generation.takes_one_dial:
        top_p = None
    dials = {
        "temperature": None if temperature is None else min(max(temperature, 0.0), 1.0),
        "top_p": top_p,
        "top_k": conversation.top_k,
    }
    return {name: value for name, value in dials.items() if value is not None}
