"""StepFun; it has no embeddings.

platform.stepfun.ai/docs/en/api-reference/chat/chat-completion-create, .../chat/messages-create (Anthropic's messages),
.../responses/responses-create, and platform.stepfun.com/docs/api-reference/models/list. Keys of platform.stepfun.com
(China) are for ``https://api.stepfun.com/v1``.
"""

from gateway.providers.base import CHAT, MESSAGES, RESPONSES, Endpoint, Provider
from gateway.providers.efforts import ORDINARY_EFFORTS, fit_effort
from gateway.providers.quirks import developer_as_system, limit_as_max_tokens

STEPFUN = Provider(
    slug="stepfun",
    title="StepFun",
    base_url="https://api.stepfun.ai/v1",
    env_key="STEP_API_KEY",
    endpoints=(
        Endpoint(
            "openai_chat",
            CHAT.path,
            quirks=(limit_as_max_tokens, developer_as_system, fit_effort((r".*", ORDINARY_EFFORTS))),
        ),
        MESSAGES,
        RESPONSES,
    ),
)
