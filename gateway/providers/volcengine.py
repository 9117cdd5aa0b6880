"""Volcengine Ark (ByteDance): Doubao, and the Seedance videos (``formats/videos/volcengine.py``).

volcengine.com/docs/82379/1298459 (address and keys), /docs/82379/1330626 (OpenAI compatibility), and for embeddings the
vendor's client, github.com/volcengine/volcengine-go-sdk, ``service/arkruntime``. Outside China it is BytePlus ModelArk
(docs.byteplus.com/en/docs/ModelArk) with separate keys, ``base_url`` ``https://ark.ap-southeast.bytepluses.com/api/v3``
and other model names (``seedance-…``, ``dreamina-seedance-…``).
"""

from collections.abc import Iterator

import attrs

from gateway.domain.capability import Capability
from gateway.formats.videos.volcengine import MODELS, TASKS_PATH
from gateway.providers.base import CHAT, EMBEDDINGS, Endpoint, Provider
from gateway.providers.efforts import ORDINARY_EFFORTS, fit_effort, thinking_disabled
from gateway.providers.message_order import four_stops


def _list_capabilities() -> Iterator[Capability]:
    for glob, model in MODELS.items():
        yield Capability(
            glob, seconds=model.seconds, sizes=tuple(model.sizes), references=model.takes_image, remixes=False
        )


VOLCENGINE = Provider(
    slug="volcengine",
    title="Volcengine Ark",
    base_url="https://ark.cn-beijing.volces.com/api/v3",
    endpoints=(
        attrs.evolve(CHAT, quirks=(thinking_disabled, fit_effort((r".*", ("minimal", *ORDINARY_EFFORTS))), four_stops)),
        EMBEDDINGS,
        Endpoint("volcengine_videos", TASKS_PATH, models=("*seedance*",)),
    ),
    models_path=None,
    capabilities=tuple(_list_capabilities()),
)
