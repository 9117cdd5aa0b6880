"""Baidu Qianfan, its API version 2.

cloud.baidu.com/doc/qianfan-api/s/omk3qc205 (chat: roles system, user, assistant and tool), .../s/Fm7u3ropn
(embeddings). A search (``web_search``) is billed. The ``appid`` of an application is a channel's header. Rerank is
not supported: Qianfan's documents disagree on its path.
"""

from gateway.providers.base import CHAT, EMBEDDINGS, Endpoint, Provider
from gateway.providers.efforts import enable_thinking_false
from gateway.providers.message_order import four_stops
from gateway.providers.priced_fields import COMMON_FIELDS
from gateway.providers.quirks import developer_as_system

QIANFAN = Provider(
    slug="qianfan",
    title="Baidu Qianfan",
    base_url="https://qianfan.baidubce.com/v2",
    endpoints=(
        Endpoint("openai_chat", CHAT.path, quirks=(enable_thinking_false, developer_as_system, four_stops)),
        EMBEDDINGS,
    ),
    models_path=None,
    priced_fields=COMMON_FIELDS | {"web_search"},
)
