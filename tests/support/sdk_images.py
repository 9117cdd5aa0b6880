"""Every kind of channel that makes pictures, behind one gateway each."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs

from tests.support.chat_images import ChatImages
from tests.support.dashscope_images import DashScopeImages
from tests.support.gateway import RunningGateway
from tests.support.gemini_images import GeminiImages
from tests.support.image_providers import Fate, ImageProvider
from tests.support.openai_images import CustomImages, OpenAiImages
from tests.support.replicate_images import ReplicateImages
from tests.support.started_gateways import StartGateway


@attrs.frozen
class Kind:
    """One kind of channel. ``provider`` None: the built-in demo.

    ``size`` is one that its model makes, ``listed`` says whether all of them are known.
    """

    name: str
    provider: type[ImageProvider] | None
    size: str
    listed: bool = True
    edits: bool = True
    masks: bool = False
    sources: int = 1
    more: dict[str, Any] = attrs.field(factory=dict)


KINDS = (
    Kind("demo", None, "512x512", masks=True, sources=16),
    Kind("openai", OpenAiImages, "1536x1024", masks=True, sources=16),
    Kind("custom", CustomImages, "512x512", listed=False, masks=True, sources=16),
    Kind("gemini", GeminiImages, "1248x832", sources=3),
    Kind("chat", ChatImages, "1248x832", sources=3),
    Kind("dashscope", DashScopeImages, "1024x1024", listed=False, edits=False),
    Kind("replicate", ReplicateImages, "1024x1024", edits=False),
)


@attrs.frozen
class Place:
    """A gateway over one channel of a kind, and the name of the model to ask for."""

    kind: Kind
    gateway: RunningGateway
    model: str
    provider: ImageProvider | None


Open = Callable[..., Awaitable[Place]]


@asynccontextmanager
async def open_kind(kind: Kind, gateway_with: StartGateway, *fates: Fate, **config: Any) -> AsyncIterator[Place]:
    """A gateway over one channel; ``fates``: what becomes of the requests it makes."""
    if kind.provider is None:
        yield Place(kind, await gateway_with(config), "demo-image", None)
        return
    async with kind.provider(*fates) as provider:
        gateway = await gateway_with({"channel": [provider.channel(fan_out=True, **kind.more)], **config})
        yield Place(kind, gateway, "m", provider)
