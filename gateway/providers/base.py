"""The description of a vendor: base URL, request signing, endpoints by API format, and quirks as pure functions."""

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
from gateway.formats.wire.request_body import JSON
from gateway.frozen import frozen
from gateway.providers.priced_fields import COMMON_FIELDS

Body = dict[str, Any]
Signer = Callable[[str], dict[str, str]]
Quirk = Callable[[Body, str], str | None]
"""Adapts a request body in place just before sending, for example drops or renames a field that the vendor rejects.

The arguments are the body and the provider's name for the model. Only the outermost dict may be changed, because nested
values are shared. Returns the name of a changed field whose effect the client would miss, which is logged with the
request; else None.
"""


def sign_bearer(key: str) -> dict[str, str]:
    """Return an ``Authorization: Bearer`` header, or no headers if ``key`` is empty."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def keep_model_id(model_id: str) -> str:
    """Return the listed model id unchanged."""
    return model_id


@frozen
class Endpoint:
    """A vendor's endpoint for one API format. ``{model}`` in a path becomes the percent-encoded model name.

    Attributes:
        stream_path: the path for streams, if it differs.
        rooted: whether the path is relative to the server's root, whatever path the base URL has.
        models: globs of the provider's model names that the endpoint serves; empty if it serves all models.
        one_choice: whether the vendor returns one choice per request and ignores ``n``, so that several choices need
            several requests.
        needs_inline_media: whether the vendor accepts images and files only as data; the gateway then downloads those
            given by URL.
        custom_tools: whether the vendor accepts custom tools in chats; if not, they become functions.
    """

    wire: Wire
    path: str
    stream_path: str | None = None
    quirks: tuple[Quirk, ...] = ()
    rooted: bool = False
    models: tuple[str, ...] = ()
    one_choice: bool = attrs.field()
    needs_inline_media: bool = False
    custom_tools: bool = False

    @one_choice.default
    def _find_one_choice(self) -> bool:
        return self.wire in {"anthropic_messages", "bedrock_converse"}

    def serves(self, model: str) -> bool:
        return not self.models or any(fnmatchcase(model, glob) for glob in self.models)

    def apply_quirks(self, body: Body, model: str) -> tuple[str, ...]:
        """Apply all quirks to ``body``. Return the names of changed fields whose effect the client would miss."""
        changes: tuple[str, ...] = ()
        for quirk in self.quirks:
            name = quirk(body, model)
            if name is not None:
                changes += (name,)
        return changes


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
    """A request to an endpoint with its serialized body.

    Attributes:
        path: the path below the base URL; None for the endpoint's own path.
    """

    body: bytes | Content | None = attrs.field(repr=False)
    media_type: str = JSON
    stream: bool = False
    accept: str = JSON
    method: str = "POST"
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Provider:
    """One vendor: how requests to it are addressed, signed and adapted.

    Attributes:
        slug: the value of a channel's ``provider``.
        base_url: the default base URL; None if every channel must set its own.
        env_key: the environment variable that usually holds the key; None if no variable may create a channel.
        env_base_url: the environment variable with which the vendor's SDK overrides ``base_url``; None if unused.
        local_port: the usual port on the same machine; None for remote vendors.
        sign: returns the headers for a key.
        sign_at: returns the headers for a key and Unix seconds, for a vendor with short-lived signatures.
        sign_request: returns additional headers for a request, a key and Unix seconds, if the signature covers the
            request.
        find_grant: returns the credentials to exchange for an access token, for a key and a base URL; None if the key
            itself is sent.
        sign_list: returns the headers for the model list, if they differ from those of ``sign``.
        models_path: the path of the model list with its query; None if there is no list.
        list_format: the API format of the model list; Gemini's has ``models`` with a ``name``.
        parse_model_id: converts an id in the model list to the id that clients use.
        priced_fields: request fields that change the price; see ``priced_fields.py``.
        priced_variant: the pattern of the part of a model name that changes the price; None if there is none.
        substitutes: whether a model other than the requested one may answer and be billed.
        reports_cost: whether answers report their cost (``usage.cost``).
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
    priced_fields: frozenset[str] = COMMON_FIELDS
    priced_variant: re.Pattern[str] | None = None
    substitutes: bool = False
    reports_cost: bool = False

    @property
    def has_static_signature(self) -> bool:
        return self.sign_at is None and self.sign_request is None

    def find_variant(self, model: str) -> str | None:
        """Return the part of ``model`` (provider name) that changes the price; None if there is none."""
        match = self.priced_variant and self.priced_variant.search(model)
        return match.group() if match else None

    def find_endpoint(self, wires: tuple[Wire, ...], model: str) -> Endpoint | None:
        """Return the endpoint of the first of ``wires`` that serves ``model`` (provider name); None without one."""
        for wire in wires:
            for endpoint in self.endpoints:
                if endpoint.wire == wire and endpoint.serves(model):
                    return endpoint
        return None

    def find_capability(self, model: str) -> Capability | None:
        return find_capability(self.capabilities, model)

    def build_request(
        self, channel: Channel, endpoint: Endpoint, request: EndpointRequest, *, model: str, key: str, now_s: int = 0
    ) -> HttpRequest:
        """Build a request, signed at ``now_s`` (Unix seconds). Headers of the channel override the gateway's.

        The headers of ``sign_request`` override those of the channel. Raises ``ProviderAuthError`` for an unusable key,
        ``UnsupportedByProvider`` for a body that cannot be signed.
        """
        request_headers = {
            "Content-Type": request.media_type,
            "Accept": request.accept,
            "Accept-Encoding": "identity",
            **(self.sign_at(key, now_s) if self.sign_at else self.sign(key)),
            **dict(request.headers),
        }
        if request.body is None:
            del request_headers["Content-Type"]
        path = request.path or (endpoint.stream_path if request.stream else None) or endpoint.path
        if request.path is None and "{model}" in path:
            # Rooted paths treat the slash of ``owner/model`` as a separator of path segments: it stays unescaped.
            path = path.replace("{model}", quote(model, safe="/" if endpoint.rooted else ""))
        base = parse_origin(channel.base_url) if endpoint.rooted else channel.base_url
        headers = _merge_headers(request_headers, dict(channel.headers))
        grant = self.find_grant(key, channel.base_url) if self.find_grant else None
        http_request = HttpRequest(
            request.method, base + path, headers, request.body, channel.timeouts, channel.proxy, grant=grant
        )
        if self.sign_request is None:
            return http_request
        signature_headers = self.sign_request(http_request, key, now_s)
        return attrs.evolve(http_request, headers=_merge_headers(headers, signature_headers), exact=True)

    def build_models_request(self, channel: Channel, key: str) -> HttpRequest:
        sign = self.sign_list or self.sign
        own_headers = {"Accept": "application/json", "Accept-Encoding": "identity", **sign(key)}
        headers = _merge_headers(own_headers, dict(channel.headers))
        return HttpRequest(
            "GET", f"{channel.base_url}{self.models_path}", headers, None, channel.timeouts, channel.proxy
        )


def _merge_headers(headers: dict[str, str], later_headers: dict[str, str]) -> dict[str, str]:
    """Return both, without those of ``headers`` that ``later_headers`` has in any letter case."""
    if not later_headers:
        return headers
    later_names = {name.lower() for name in later_headers}
    return {name: value for name, value in headers.items() if name.lower() not in later_names} | later_headers


def parse_origin(url: str) -> str:
    """Return the origin (scheme, host and port) of a base URL."""
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
    if "?" in url or "#" in url:  # also if empty: an appended path would be part of the query
        return "a base URL has no query or fragment"
    if "@" in parts.netloc:
        return "credentials belong in api_key, not in the URL"
    return None
