"""Tencent TokenHub: Tencent's Hy models and those of other vendors.

www.tencentcloud.com/document/product/1300/78941 (addresses, Bearer key) and cloud.tencent.com/developer/article/2779936
(paths: chat for all models, Responses and Anthropic's messages for some; the model list). Keys of the Chinese site are
for ``https://tokenhub.tencentmaas.com/v1`` (cloud.tencent.com/document/product/1823/131382).
"""

import attrs

from gateway.providers.base import CHAT, MESSAGES, RESPONSES, Provider
from gateway.providers.efforts import thinking_disabled

TOKENHUB = Provider(
    slug="tokenhub",
    title="Tencent TokenHub",
    base_url="https://tokenhub-intl.tencentcloudmaas.com/v1",
    env_key="TOKENHUB_API_KEY",
    endpoints=(attrs.evolve(CHAT, quirks=(thinking_disabled,)), MESSAGES, RESPONSES),
)
