"""What forms that send requests offer: usable keys, and models by what they do."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from aiohttp import web

from gateway.domain.account_spec import build_time
from gateway.frozen import frozen
from gateway.server.admin.accounts import KeyView
from gateway.server.console.page import Data, ask
from gateway.server.console.routes import mark
from gateway.server.context import SERVICES, SIGNED

Kind = Literal["chat", "images", "video", "speech", "transcription", "audio", "other"]

_BY_NAME: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"embed|rerank|moderation|\bbge-|\be5-|babbage|davinci|turbo-instruct"), "other"),
    (re.compile(r"t2i|text-to-image|wanx"), "images"),
    (re.compile(r"video|\bsora|\bveo|kling|seedance|hailuo|\bwan\d|t2v|i2v|\bgen[34]|\bgen-[34]|\bray-"), "video"),
    (re.compile(r"whisper|transcri|\basr|-asr"), "transcription"),
    (re.compile(r"\btts|-tts|speech|cosyvoice|eleven_"), "speech"),
    (re.compile(r"audio|realtime|voice|lyria"), "audio"),
    (re.compile(r"imagen?\b|imagine|dall-e|\bflux|diffusion|sdxl|\bsd3|kolors|seedream|cogview|recraft"), "images"),
    (re.compile(r"ideogram|hidream|midjourney|\bphoton"), "images"),
)
"""What a model's name tells. Providers' lists do not tell what a model does."""
_FIRST = ("*-mini", "*-mini-*", "*flash*", "*haiku*", "*nano*", "*small*")
"""Models for a first try: they answer fast and cost little."""


@frozen
class Choices:
    """The choices of a form.

    Attributes:
        keys: as the admin API shows them; keys without restrictions first.
        taken: the names of all keys of the account.
        models: by what they do.
    """

    keys: Sequence[KeyView]
    taken: frozenset[str]
    models: Mapping[Kind, Sequence[str]]

    def list_groups(self, kind: Kind) -> list[tuple[str, list[str]]]:
        """Return the models of ``kind`` with a title in English, the best first try before the others."""
        chosen = list(self.models[kind])
        first = find_first(chosen)
        fitting = [first, *(name for name in chosen if name != first)] if first else []
        return [(_TITLES[kind], fitting)]


_TITLES: Mapping[Kind, str] = {
    "chat": mark("Chat models"),
    "images": mark("Image models"),
    "video": mark("Video models"),
    "speech": mark("Speech models"),
    "transcription": mark("Transcription models"),
}


async def find_choices(request: web.Request) -> Choices:
    """Return what the viewer's account can choose from now."""
    account, now = request[SIGNED].account.name, build_time(int(request.app[SERVICES].clock()))
    keys = await ask(request, "/keys", account=account)
    usable = [key for key in keys if _is_usable(key, account, now)]
    models = await ask(request, "/models")
    return Choices(
        keys=sorted(usable, key=lambda key: (bool(key.models or key.allow_ips), key.id)),
        taken=frozenset(key.name for key in keys if key.account == account),
        models=sort(models),
    )


def _is_usable(key: KeyView, account: str, now: str) -> bool:
    expires = key.expires_at
    return key.account == account and key.status == "active" and (expires is None or expires > now)


def sort(models: Iterable[Mapping[str, Any]]) -> dict[Kind, list[str]]:
    """Group the ids of models by what they do."""
    sorted_: dict[Kind, list[str]] = {kind: [] for kind in get_args(Kind)}
    for model in models:
        sorted_[find_kind(model["id"], model.get("price") or {})].append(model["id"])
    return sorted_


def find_kind(name: str, price: Mapping[str, Any]) -> Kind:
    """Return what a model does by its name, else by what is paid for."""
    plain = name.lower()
    for pattern, kind in _BY_NAME:
        if pattern.search(plain):
            return kind
    return "images" if price.get("usd_per_image") else "chat"


def find_first(names: Sequence[str]) -> str | None:
    """Return the model to try first; None if there is none. The demo's comes after all others."""
    names = [name for name in names if not name.startswith("demo-")] or names
    for glob in _FIRST:
        for name in names:
            if fnmatchcase(name, glob):
                return name
    return names[0] if names else None


def find_free_name(wanted: str, taken: Collection[str]) -> str:
    """Return ``wanted``, with the first free number if it is taken."""
    number = 1
    name = wanted
    while name in taken:
        number += 1
        name = f"{wanted} {number}"
    return name


def format_key_choices(choices: Choices) -> list[tuple[str, str]]:
    """Return value and label for each option of a select."""
    return [(str(key.id), f"{key.name} ({key.key})") for key in choices.keys]


def format_choices(choices: Choices, kind: Kind) -> Data:
    """Return the template variables of pages that send requests."""
    groups = choices.list_groups(kind)
    names = [name for _, group in groups for name in group]
    return {
        "groups": groups,
        "all_models": names,
        "model": (groups[0][1] or [""])[0],
        "key_choices": format_key_choices(choices),
    }
