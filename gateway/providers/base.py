"""The description of a vendor: an address, a signer, its API formats and their paths, and small pure quirks."""

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import attrs

from gateway.domain.api_format import Wire
from gateway.domain.capability import Capability, find_capability
from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest, TokenGrant
from gateway.domain.upload import Content
from gateway.formats.request_body import JSON
from gateway.frozen import frozen
from gateway.providers.priced_fields import EVERYWHERE

Body = dict[str, Any]
Signer = Callable[[str], dict[str, str]]
Quirk = Callable[[Body, str], str | None]
"""Changes a body in place, just before it is sent with the provider's name of the model: drops a field that the vendor
rejects, or renames one. Only the outermost dict may be changed; nested values are shared. Returns the name of a field
that the client would miss, for the record of the request.
"""


def sign_bearer(key: str) -> dict[str, str]:
    """Return ``Authorization: Bearer``; nothing without a key."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def keep_model_id(listed: str) -> str:
    """Return a model's id as the provider lists it."""
    return listed


@frozen
class Endpoint:
    """Where a vendor takes requests in one API format.

    ``{model}`` in a path is replaced by the percent-encoded model name.

    Attributes:
        path: below the base URL.
        stream_path: the path for streams, if it differs.
        quirks: this vendor's deviations from the format.
        rooted: the path is below the server's root, whatever path the base URL has.
        models: globs of provider model names that the endpoint serves; empty: all.
        one_choice: it makes one choice per request, whatever ``n`` says: several need several requests.
        fetches: it takes images and files as data alone: the gateway fetches those that a prompt names by address.
        custom_tools: a chat may have custom tools, which only OpenAI has; elsewhere they become functions.
    """

    wire: Wire
    path: str
    stream_path: str | None = None
    quirks: tuple[Quirk, ...] = ()
    rooted: bool = False
    models: tuple[str, ...] = ()
    one_choice: bool = attrs.field()
    fetches: bool = False
    custom_tools: bool = False

    @one_choice.default
    def _find_one_choice(self) -> bool:
        return self.wire in {"anthropic_messages", "bedrock_converse"}

    def takes(self, model: str) -> bool:
        """Return whether the endpoint serves ``model``."""
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def apply_quirks(self, body: Body, model: str) -> tuple[str, ...]:
        """Change ``body`` as the vendor needs it. Returns the names of what the client would miss."""
        changed: tuple[str, ...] = ()
        for quirk in self.quirks:
            name = quirk(body, model)
            if name is not None:
                changed += (name,)
        return changed


CHAT = Endpoint("openai_chat", "/chat/completions")
EMBEDDINGS = Endpoint("openai_embeddings", "/embeddings")
COMPLETIONS = Endpoint("openai_completions", "/completions")
MODERATIONS = Endpoint("openai_moderations", "/moderations")
RESPONSES = Endpoint("openai_responses", "/responses")
COMPACT = Endpoint("openai_compact", "/responses/compact")
RERANK = Endpoint("rerank", "/rerank")
IMAGES = Endpoint("openai_images", "/images/generations")
EDITS = Endpoint("openai_edits", "/images/edits")
TRANSCRIPTIONS = Endpoint("openai_transcriptions", "/audio/transcriptions")
TRANSLATIONS = Endpoint("openai_translations", "/audio/translations")
VIDEOS = Endpoint("openai_videos", "/videos")
SPEECH = Endpoint("openai_speech", "/audio/speech")
REALTIME = Endpoint("openai_realtime", "/realtime?model={model}")
"""A WebSocket; see ``upstream/websocket.py``."""
MESSAGES = Endpoint("anthropic_messages", "/messages")
COUNT_TOKENS = Endpoint("anthropic_count_tokens", "/messages/count_tokens")


@frozen
class EndpointRequest:
    """A request to an endpoint, in bytes. ``path`` None: the endpoint's own."""

    body: bytes | Content | None = attrs.field(repr=False)
    media_type: str = JSON
    stream: bool = False
    accept: str = JSON
    method: str = "POST"
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Provider:
    """One vendor.

    Attributes:
        slug: the value of a channel's ``provider``.
        title: its name for people.
        base_url: its address; None if every channel has to give its own.
        env_key: the environment variable that usually holds its key; None if there is none, or no key.
        env_base_url: the environment variable with which the vendor's SDK replaces ``base_url``; None if there is none.
        local_port: its usual port on the same machine; None for remote vendors.
        endpoints: its API formats and their paths.
        sign: key -> headers.
        sign_at: key and Unix seconds -> headers, for a vendor with short-lived signatures.
        sign_request: a request, key and Unix seconds -> more headers, for a vendor whose signature covers the request.
        find_grant: key and base URL -> the credentials for which an access token is fetched; None if the key is sent.
        sign_list: like ``sign``, for its model list, if that differs.
        models_path: the path of its model list, with its query; None if it has none.
        list_format: the API format of that list; Gemini's has ``models`` with a ``name``.
        parse_model_id: id in the list -> id that clients use.
        capabilities: what its models support.
        priced_fields: request fields that change what is bought; see ``priced_fields.py``.
        priced_variant: a part of its model names with the same effect; None: there is none.
        substitutes: another model than the requested one may answer, and is billed.
        reports_cost: its answers say what it charges (``usage.cost``).
    """

    slug: str
    title: str
    base_url: str | None = None
    env_key: str | None = None
    env_base_url: str | None = None
    local_port: int | None = None
    endpoints: tuple[Endpoint, ...] = (CHAT, EMBEDDINGS)
    sign: Signer = sign_bearer
    sign_at: Callable[[str, int], dict[str, str]] | None = None
    sign_request: Callable[[HttpRequest, str, int], dict[str, str]] | None = None
    find_grant: Callable[[str, str], TokenGrant | None] | None = None
    sign_list: Signer | None = None
    models_path: str | None = "/models"
    list_format: Literal["openai", "gemini"] = "openai"
    parse_model_id: Callable[[str], str] = keep_model_id
    capabilities: tuple[Capability, ...] = ()
    priced_fields: frozenset[str] = EVERYWHERE
    priced_variant: re.Pattern[str] | None = None
    substitutes: bool = False
    reports_cost: bool = False

    @property
    def signs_once(self) -> bool:
        """Whether the headers of a request depend on nothing but the key."""
        return self.sign_at is None and self.sign_request is None

    def find_variant(self, model: str) -> str | None:
        """Return the part of ``model`` (provider name) that changes what is bought; None if there is none."""
        found = self.priced_variant and self.priced_variant.search(model)
        return found.group() if found else None

    def find_endpoint(self, wires: tuple[Wire, ...], model: str) -> Endpoint | None:
        """Return the endpoint for the first of ``wires`` that the vendor offers with ``model`` (its own name)."""
        for wire in wires:
            for endpoint in self.endpoints:
                if endpoint.wire == wire and endpoint.takes(model):
                    return endpoint
        return None

    def find_capability(self, model: str) -> Capability | None:
        """Return what is known about ``model`` (provider name)."""
        return find_capability(self.capabilities, model)

    def build_request(
        self, channel: Channel, endpoint: Endpoint, request: EndpointRequest, *, model: str, key: str, now_s: int = 0
    ) -> HttpRequest:
        """Build a request to ``endpoint`` at ``now_s``. Headers come from the gateway, ``request`` and the channel."""
        ours = {
            "Content-Type": request.media_type,
            "Accept": request.accept,
            "Accept-Encoding": "identity",
            **(self.sign_at(key, now_s) if self.sign_at else self.sign(key)),
            **dict(request.headers),
        }
        if request.body is None:
            del ours["Content-Type"]
        path = request.path or (endpoint.stream_path if request.stream else None) or endpoint.path
        if request.path is None and "{model}" in path:
            # In a model name with an owner the slash is part of the path.
            path = path.replace("{model}", quote(model, safe="/" if endpoint.rooted else ""))
        base = parse_origin(channel.base_url) if endpoint.rooted else channel.base_url
        headers = _merge_headers(ours, channel)
        grant = self.find_grant(key, channel.base_url) if self.find_grant else None
        http_request = HttpRequest(
            request.method, base + path, headers, request.body, channel.timeouts, channel.proxy, grant=grant
        )
        if self.sign_request is None:
            return http_request
        return attrs.evolve(http_request, headers=headers | self.sign_request(http_request, key, now_s), exact=True)

    def build_models_request(self, channel: Channel, key: str) -> HttpRequest:
        """Build the request for the model list. Only for a provider with a ``models_path``."""
        sign = self.sign_list or self.sign
        headers = _merge_headers({"Accept": "application/json", "Accept-Encoding": "identity", **sign(key)}, channel)
        return HttpRequest(
            "GET", f"{channel.base_url}{self.models_path}", headers, None, channel.timeouts, channel.proxy
        )


def _merge_headers(ours: dict[str, str], channel: Channel) -> dict[str, str]:
    """Merge the channel's headers over the gateway's; names are case-insensitive."""
    if not channel.headers:
        return ours
    theirs = {name.lower() for name, _ in channel.headers}
    return {name: value for name, value in ours.items() if name.lower() not in theirs} | dict(channel.headers)


def parse_origin(url: str) -> str:
    """Return scheme, host and port of a base URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def find_url_problem(url: str) -> str | None:
    """Return why ``url`` cannot be a base URL; None if it can."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return str(error)
    if not url.isprintable() or " " in url:
        return "a URL has no spaces or control characters"
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        return "expected http:// or https:// and a host"
    if "?" in url or "#" in url:  # an empty one too: a path appended to it would be no path
        return "a base URL has no query or fragment"
    if "@" in parts.netloc:
        return "credentials belong in api_key, not in the URL"
    return None
