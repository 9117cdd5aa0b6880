"""DeepSeek; it has no embeddings.

api-docs.deepseek.com/api/create-chat-completion (roles system, user, assistant and tool; ``max_tokens``; no ``n``),
.../api/create-completion (fill in the middle, beta), .../guides/responses_api, .../guides/anthropic_api (below
``/anthropic``). While a model thinks, sampling parameters are ignored without an error (.../guides/thinking_mode). A
channel's own ``base_url`` must not end in ``/v1``.
"""

import attrs

from gateway.providers.base import CHAT, RESPONSES, Endpoint, Provider
from gateway.providers.efforts import EffortsByModel, disable_when_forced, fit_effort, fit_reasoning, thinking_disabled
from gateway.providers.message_order import limit_stops, think_before_calls
from gateway.providers.quirks import developer_as_system, drop_duplicate_tools, limit_as_max_tokens

_disable_when_forced = disable_when_forced("thinking", {"type": "disabled"}, r"deepseek-v[4-9].*")
"""api-docs.deepseek.com/guides/thinking_mode."""
_EFFORTS: EffortsByModel = ((r".*", ("low", "medium", "high", "xhigh", "max")),)
"""Same page: the efforts are low, high and max, with two aliases; chats turn reasoning off by another field."""
_sixteen_stops = limit_stops(16)
"""api-docs.deepseek.com/api/create-chat-completion, ``stop``."""

DEEPSEEK = Provider(
    slug="deepseek",
    title="DeepSeek",
    base_url="https://api.deepseek.com",
    env_key="DEEPSEEK_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(
                thinking_disabled,
                _disable_when_forced,
                fit_effort(*_EFFORTS),
                limit_as_max_tokens,
                developer_as_system,
                think_before_calls,
                drop_duplicate_tools,
                _sixteen_stops,
            ),
            one_choice=True,
        ),
        Endpoint("anthropic_messages", "/anthropic/v1/messages", quirks=(drop_duplicate_tools,)),
        Endpoint("openai_completions", "/beta/completions", quirks=(_sixteen_stops,)),
        attrs.evolve(RESPONSES, quirks=(fit_reasoning((".*", ("none", *_EFFORTS[0][1]))), drop_duplicate_tools)),
    ),
)
