"""The choices of forms that send requests: usable keys, and models by kind."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, get_args

from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.frozen import frozen
from gateway.server.admin.accounts import KeyView
from gateway.server.admin.models import ModelView
from gateway.server.console.page import Data, ask_admin_api
from gateway.server.console.routes import mark
from gateway.server.context import SERVICES, USER

ModelKind = Literal["chat", "images", "video", "speech", "transcription", "audio", "other"]

_KIND_PATTERNS: tuple[tuple[re.Pattern[str], ModelKind], ...] = (
    (re.compile(r"embed|rerank|moderation|\bbge-|\be5-|babbage|davinci|turbo-instruct"), "other"),
    (re.compile(r"t2i|text-to-image|wanx"), "images"),
    (re.compile(r"video|\bsora|\bveo|kling|seedance|hailuo|\bwan\d|t2v|i2v|\bgen[34]|\bgen-[34]|\bray-"), "video"),
    (re.compile(r"whisper|transcri|\basr|-asr"), "transcription"),
    (re.compile(r"\btts|-tts|speech|cosyvoice|eleven_"), "speech"),
    (re.compile(r"audio|realtime|voice|lyria"), "audio"),
    (re.compile(r"imagen?\b|imagine|dall-e|\bflux|diffusion|sdxl|\bsd3|kolors|seedream|cogview|recraft"), "images"),
    (re.compile(r"ideogram|hidream|midjourney|\bphoton"), "images"),
)
"""Name patterns for each kind of model: providers' lists do not name a model's kind."""
_ROUTE_KINDS: Mapping[str, ModelKind] = {
    "chat": "chat",
    "image": "images",
    "video": "video",
    "speech": "speech",
    "transcription": "transcription",
    "realtime": "audio",
}
"""The kind in forms, by the kind in ``domain/model_description.py``."""
_PREFERRED_MODELS = ("*-mini", "*-mini-*", "*flash*", "*haiku*", "*nano*", "*small*")
"""Fast and cheap models for a first try."""


@frozen
class Choices:
    """The choices of a form.

    ``keys`` are the usable keys, those without restrictions first. ``taken_names`` are the names of all keys.
    ``models`` and ``routes`` are the names that a request can ask for, by the kind of model.
    """

    keys: Sequence[KeyView]
    taken_names: frozenset[str]
    models: Mapping[ModelKind, Sequence[str]]
    routes: Mapping[ModelKind, Sequence[str]]

    def list_groups(self, kind: ModelKind) -> list[tuple[str, list[str]]]:
        """Return the models of ``kind``, then the routes, each with a title in English.

        The model for a first try comes first.
        """
        model_ids = list(self.models[kind])
        first = find_preferred_model(model_ids)
        sorted_models = [first, *(name for name in model_ids if name != first)] if first else []
        return [(_TITLES[kind], sorted_models), (_ROUTES_TITLE, list(self.routes[kind]))]


_TITLES: Mapping[ModelKind, str] = {
    "chat": mark("Chat models"),
    "images": mark("Image models"),
    "video": mark("Video models"),
    "speech": mark("Speech models"),
    "transcription": mark("Transcription models"),
}

_ROUTES_TITLE = mark("Routes")


async def find_choices(request: web.Request) -> Choices:
    """Return the keys and models that the viewer's account can use now; for administrators, all models."""
    account, now = request[USER].account.name, build_time(int(request.app[SERVICES].clock()))
    keys = await ask_admin_api(request, "/keys", account=account)
    usable_keys = [key for key in keys if _is_usable(key, account, now)]
    models = await ask_admin_api(request, "/models")
    return Choices(
        keys=sorted(usable_keys, key=lambda key: (bool(key.models or key.allow_ips), key.id)),
        taken_names=frozenset(key.name for key in keys if key.account == account),
        models=group_models(model for model in models if not model.route),
        routes=group_models(model for model in models if model.route),
    )


def _is_usable(key: KeyView, account: str, now: str) -> bool:
    expires_at = key.expires_at
    return key.account == account and key.status == "active" and (expires_at is None or expires_at > now)


def group_models(models: Iterable[ModelView]) -> dict[ModelKind, list[str]]:
    """Group the ids of models by kind."""
    models_by_kind: dict[ModelKind, list[str]] = {kind: [] for kind in get_args(ModelKind)}
    for model in models:
        models_by_kind[_find_route_kind(model) if model.route else _find_model_kind(model)].append(model.id)
    return models_by_kind


def _find_model_kind(model: ModelView) -> ModelKind:
    return find_kind(model.id, model.price.usd_per_image if model.price else 0)


def _find_route_kind(route: ModelView) -> ModelKind:
    """Return the kind of a route's models, by the route's properties: its name says nothing about its kind."""
    if route.kind is None:
        return "images" if route.price and route.price.usd_per_image else "chat"
    return _ROUTE_KINDS.get(route.kind, "other")


def find_kind(name: str, usd_per_image: float = 0) -> ModelKind:
    """Return a model's kind by its name; for other names ``images`` if an image has a price, else ``chat``."""
    lower_name = name.lower()
    for pattern, kind in _KIND_PATTERNS:
        if pattern.search(lower_name):
            return kind
    return "images" if usd_per_image else "chat"


def find_preferred_model(names: Sequence[str]) -> str | None:
    """Return the model for a first try: one of the demo only if there are no others, None if there are no models."""
    names = [name for name in names if not name.startswith("demo-")] or names
    for pattern in _PREFERRED_MODELS:
        for name in names:
            if fnmatchcase(name, pattern):
                return name
    return names[0] if names else None


def find_free_name(base_name: str, taken_names: Collection[str]) -> str:
    """Return ``base_name``, with the first free number appended if the name is taken."""
    number = 1
    name = base_name
    while name in taken_names:
        number += 1
        name = f"{base_name} {number}"
    return name


def format_key_choices(choices: Choices) -> list[tuple[str, str]]:
    """Return the value and the label of each option of a ``<select>`` of the usable keys."""
    return [(str(key.id), f"{key.name} ({key.key})") for key in choices.keys]


def format_choices(choices: Choices, kind: ModelKind) -> Data:
    """Return the template variables of pages that send requests."""
    groups = choices.list_groups(kind)
    names = [name for _, group in groups for name in group]
    return {
        "groups": groups,
        "all_models": names,
        "model": names[0] if names else "",
        "key_choices": format_key_choices(choices),
    }
