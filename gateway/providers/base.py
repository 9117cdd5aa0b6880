"""What a vendor is to the gateway: an address, a signer, the languages it speaks where, and small pure quirks."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import attrs

from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability, find_capability
from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.upload import Content
from gateway.formats.request_body import JSON
from gateway.providers.priced_fields import EVERYWHERE

Body = dict[str, Any]
Signer = Callable[[str], dict[str, str]]
Quirk = Callable[[Body, str], None]
"""Changes a body in place, just before it is sent under the provider's own name of the model: a field the vendor
refuses is dropped, another name is given to one. The outermost dict is its own to change; what is in it is shared."""


def sign_bearer(key: str) -> dict[str, str]:
    """``Authorization: Bearer``, what every provider of the convention reads; nothing where there is no key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def keep_model_id(listed: str) -> str:
    """A model's id as the provider lists it."""
    return listed


@attrs.frozen
class Endpoint:
    """Where a vendor takes calls in one language. ``{model}`` in a path stands for the model's name, percent-encoded.

    Attributes:
        wire: the language.
        path: behind the base URL.
        stream_path: the same for streams, where that differs.
        quirks: what this vendor's dialect of the language asks for.
        rooted: the path is the server's, whatever path the base URL has.
        models: globs of the provider's names of models; the language is for these alone. None given: for every one.
    """

    wire: Wire
    path: str
    stream_path: str | None = None
    quirks: tuple[Quirk, ...] = ()
    rooted: bool = False
    models: tuple[str, ...] = ()

    def takes(self, model: str) -> bool:
        """Whether the language is for ``model``."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def shape(self, body: Body, model: str) -> None:
        """Apply every quirk to ``body``."""
        for quirk in self.quirks:
            quirk(body, model)


CHAT = Endpoint("openai_chat", "/chat/completions")
EMBEDDINGS = Endpoint("openai_embeddings", "/embeddings")
COMPLETIONS = Endpoint("openai_completions", "/completions")
MODERATIONS = Endpoint("openai_moderations", "/moderations")
RESPONSES = Endpoint("openai_responses", "/responses")
RERANK = Endpoint("rerank", "/rerank")
IMAGES = Endpoint("openai_images", "/images/generations")
EDITS = Endpoint("openai_edits", "/images/edits")
TRANSCRIPTIONS = Endpoint("openai_transcriptions", "/audio/transcriptions")
TRANSLATIONS = Endpoint("openai_translations", "/audio/translations")
VIDEOS = Endpoint("openai_videos", "/videos")
SPEECH = Endpoint("openai_speech", "/audio/speech")
MESSAGES = Endpoint("anthropic_messages", "/messages")
COUNT_TOKENS = Endpoint("anthropic_count_tokens", "/messages/count_tokens")


@attrs.frozen
class EndpointRequest:
    """What is to be asked at an endpoint, in bytes. ``path`` None: the endpoint's own."""

    body: bytes | Content | None = attrs.field(repr=False)
    media_type: str = JSON
    stream: bool = False
    accept: str = JSON
    method: str = "POST"
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class Provider:
    """One vendor.

    Attributes:
        slug: what a channel's ``provider`` says.
        title: its name for people.
        base_url: its address; None where every channel has to say its own.
        env_key: the environment variable that usually holds its key; None where there is no custom.
        local_port: the port on which it usually listens on the same machine; None for remote vendors.
        endpoints: the languages it speaks, and where.
        sign: key -> headers.
        sign_at: key and Unix seconds -> headers, for a vendor that takes signatures of the moment instead.
        sign_list: the same as ``sign`` for its model list, where that differs.
        models_path: where its model list is, with its query; None where it has none.
        list_dialect: the language of that list.
        read_model_id: its listed id -> the id callers use.
        capabilities: what its models can be asked for.
        priced_fields: fields of a request that change what is bought; see ``priced_fields.py``.
        priced_variant: what in its names of models does the same; None: nothing.
        substitutes: another model than the one asked for may answer, and is what is billed.
    """

    slug: str
    title: str
    base_url: str | None = None
    env_key: str | None = None
    local_port: int | None = None
    endpoints: tuple[Endpoint, ...] = (CHAT, EMBEDDINGS)
    sign: Signer = sign_bearer
    sign_at: Callable[[str, int], dict[str, str]] | None = None
    sign_list: Signer | None = None
    models_path: str | None = "/models"
    list_dialect: Literal["openai", "gemini"] = "openai"
    parse_model_id: Callable[[str], str] = keep_model_id
    capabilities: tuple[Capability, ...] = ()
    priced_fields: frozenset[str] = EVERYWHERE
    priced_variant: re.Pattern[str] | None = None
    substitutes: bool = False

    def find_variant(self, model: str) -> str | None:
        """What ``model`` (its own name of it) has behind it that changes what is bought; None: nothing."""
        found = self.priced_variant and self.priced_variant.search(model)
        return found.group() if found else None

    def find_endpoint(self, wires: tuple[Wire, ...], model: str) -> Endpoint | None:
        """The first of ``wires`` that the vendor speaks with ``model`` (its own name of it); None: none."""
        for wire in wires:
            for endpoint in self.endpoints:
                if endpoint.wire == wire and endpoint.takes(model):
                    return endpoint
        return None

    def find_capability(self, model: str) -> Capability | None:
        """What is known of ``model`` (its own name of it)."""
        return find_capability(self.capabilities, model)

    def plan(
        self, channel: Channel, endpoint: Endpoint, errand: EndpointRequest, *, model: str, key: str, now_s: int = 0
    ) -> HttpRequest:
        """A request to ``endpoint`` at ``now_s``. Every header is ours (the errand's included) or the channel's."""
        ours = {
            "Content-Type": errand.media_type,
            "Accept": errand.accept,
            "Accept-Encoding": "identity",
            **(self.sign_at(key, now_s) if self.sign_at else self.sign(key)),
            **dict(errand.headers),
        }
        if errand.body is None:
            del ours["Content-Type"]
        path = errand.path or (endpoint.stream_path if errand.stream else None) or endpoint.path
        if errand.path is None and "{model}" in path:
            # In the name of a model that belongs to an owner the slash is one of the path.
            path = path.replace("{model}", quote(model, safe="/" if endpoint.rooted else ""))
        base = parse_origin(channel.base_url) if endpoint.rooted else channel.base_url
        headers = _lay_over(ours, channel)
        return HttpRequest(errand.method, base + path, headers, errand.body, channel.timeouts, channel.proxy)

    def plan_models(self, channel: Channel, key: str) -> HttpRequest:
        """A GET of the provider's model list. Only for a provider that has ``models_path``."""
        sign = self.sign_list or self.sign
        headers = _lay_over({"Accept": "application/json", "Accept-Encoding": "identity", **sign(key)}, channel)
        return HttpRequest(
            "GET", f"{channel.base_url}{self.models_path}", headers, None, channel.timeouts, channel.proxy
        )


def _lay_over(ours: dict[str, str], channel: Channel) -> dict[str, str]:
    """Our headers under the channel's own; a name is the same in any spelling."""
    if not channel.headers:
        return ours
    theirs = {name.lower() for name, _ in channel.headers}
    return {name: value for name, value in ours.items() if name.lower() not in theirs} | dict(channel.headers)


def parse_origin(url: str) -> str:
    """Scheme, host and port of a base URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def find_url_problem(url: str) -> str | None:
    """Why ``url`` cannot be a base URL, or None where it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if not url.isprintable() or " " in url:
        return "a URL has no spaces or control characters"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return "expected http:// or https:// and a host"
    if "?" in url or "#" in url:  # an empty one too: what is put behind it would be no path
        return "a base URL has no query or fragment"
    if "@" in parts.netloc:
        return "credentials belong in api_key, not in the URL"
    return None
